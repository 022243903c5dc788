"""Watched functions of every sort, and strict watches in asyncio."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator

import pytest

import lowtide
from lowtide import MemoryBudgetExceeded
from lowtide._memory import proc
from tests.support.pages import touch

MIB = 2**20


def rows(items: int, mib: int) -> Iterator[int]:
    held = []
    for item in range(items):
        held.append(touch(mib * MIB))
        yield item


async def async_rows(items: int, mib: int) -> AsyncIterator[int]:
    held = []
    for item in range(items):
        held.append(touch(mib * MIB))
        await asyncio.sleep(0)
        yield item


async def listed(items: AsyncIterator[int]) -> list[int]:
    return [item async for item in items]


def test_caught_exception_does_not_retain_memory_of_block() -> None:
    def block() -> None:
        with lowtide.watch("16 MiB"):
            held = touch(48 * MIB)  # noqa: F841 - alive until this frame ends

    before = proc.status().rss
    for _ in range(3):
        with pytest.raises(MemoryBudgetExceeded):
            block()
        assert proc.status().rss < before + 24 * MIB


def test_generator_within_budget_yields_its_items() -> None:
    assert list(lowtide.watch("64 MiB")(rows)(5, 1)) == [0, 1, 2, 3, 4]
    assert asyncio.run(listed(lowtide.watch("64 MiB")(async_rows)(5, 1))) == [0, 1, 2, 3, 4]


def test_generator_over_budget_raises() -> None:
    with pytest.raises(MemoryBudgetExceeded, match=r"resident memory reached 6[34]"):
        list(lowtide.watch("32 MiB")(rows)(64, 1))
    with pytest.raises(MemoryBudgetExceeded, match=r"resident memory reached 6[34]"):
        asyncio.run(listed(lowtide.watch("32 MiB")(async_rows)(64, 1)))


def test_generator_closed_early_over_budget_raises() -> None:
    items = lowtide.watch("8 MiB")(rows)(64, 1)
    for _ in range(20):
        next(items)
    with pytest.raises(MemoryBudgetExceeded):
        items.close()  # type: ignore[attr-defined]


def test_generator_forwards_send_and_throw() -> None:
    @lowtide.watch("64 MiB")
    def echo() -> Generator[object, object, str]:
        received: object = "start"
        while received != "end":
            try:
                received = yield received
            except KeyError as error:
                received = error.args[0]
        return "result"

    items = echo()
    assert next(items) == "start"
    assert items.send(7) == 7
    assert items.throw(KeyError("thrown")) == "thrown"
    with pytest.raises(StopIteration) as stop:
        items.send("end")
    assert stop.value.value == "result"


def test_async_generator_forwards_asend_and_athrow() -> None:
    @lowtide.watch("64 MiB")
    async def echo() -> AsyncGenerator[object, object]:
        received: object = "start"
        while True:
            try:
                received = yield received
            except KeyError as error:
                received = error.args[0]

    async def use() -> list[object]:
        items = echo()
        results = [
            await anext(items),
            await items.asend(7),
            await items.athrow(KeyError("thrown")),
        ]
        await items.aclose()
        return results

    assert asyncio.run(use()) == ["start", 7, "thrown"]


def test_strict_generator_raises_at_next_item_not_in_caller() -> None:
    items = lowtide.watch("32 MiB", strict=True)(rows)(3, 1)
    next(items)
    held = touch(64 * MIB)
    deadline = time.monotonic() + 0.5  # the caller's own code is not interrupted
    while time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(MemoryBudgetExceeded, match="resident memory reached 6"):
        next(items)
    del held


@pytest.mark.parametrize("decorated", [True, False], ids=["decorator", "with"])
def test_strict_watch_ends_task_not_event_loop(decorated: bool) -> None:
    """Most of the time the loop waits in its selector, where an exception would end ``asyncio.run``."""

    async def work() -> None:
        held = []
        for _ in range(400):
            held.append(touch(MIB))
            await asyncio.sleep(0.005)

    async def block() -> None:
        with lowtide.watch("32 MiB", strict=True):
            await work()

    async def main() -> tuple[str, int]:
        task = asyncio.current_task()
        assert task is not None
        message = ""
        try:
            await (lowtide.watch("32 MiB", strict=True)(work) if decorated else block)()
        except MemoryError as error:
            message = str(error)
        await asyncio.sleep(0)  # the loop works, and the task is not cancelled
        return message, task.cancelling()

    message, cancelling = asyncio.run(main())
    assert "resident memory reached 3" in message or "resident memory reached 4" in message, message
    assert cancelling == 0


def test_strict_watch_does_not_interrupt_other_tasks() -> None:
    async def watched() -> str:
        try:
            with lowtide.watch("32 MiB", strict=True):
                await asyncio.sleep(20)
        except MemoryError:
            return "over"
        return "not over"

    async def bystander() -> str:
        await asyncio.sleep(0.05)
        held = touch(64 * MIB)
        for _ in range(100):
            time.sleep(0.005)  # this task runs when the alarm comes
        del held
        await asyncio.sleep(0)
        return "undisturbed"

    async def main() -> tuple[str, str]:
        return await asyncio.gather(watched(), bystander())

    assert tuple(asyncio.run(main())) == ("over", "undisturbed")


def test_strict_watch_interrupts_computing_task() -> None:
    async def compute() -> None:
        with lowtide.watch("32 MiB", strict=True):
            held = touch(64 * MIB)  # noqa: F841 - held while the task computes
            time.sleep(20)

    started = time.monotonic()
    with pytest.raises(MemoryBudgetExceeded, match="resident memory reached 64"):
        asyncio.run(compute())
    assert time.monotonic() - started < 10


def test_strict_watch_raises_in_event_loop_of_another_thread() -> None:
    outcome: list[BaseException] = []

    async def work() -> None:
        with lowtide.watch("32 MiB", strict=True):
            held = touch(64 * MIB)  # noqa: F841 - held while the task waits
            await asyncio.sleep(20)

    def run() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(15)
    assert isinstance(outcome[0], MemoryBudgetExceeded)
    assert "resident memory reached 64" in str(outcome[0])


def test_cancelled_task_stays_cancelled_under_strict_watch() -> None:
    async def work() -> None:
        with lowtide.watch("1 GiB", strict=True):
            await asyncio.sleep(20)

    async def main() -> bool:
        task = asyncio.create_task(work())
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(main())


CHILD = "import time; block = bytearray(b'x') * (96 * 2**20); print(flush=True); time.sleep(1)"


def run_child() -> None:
    subprocess.run([sys.executable, "-c", CHILD], stdout=subprocess.DEVNULL, check=True)


def test_children_count_only_on_request() -> None:
    with lowtide.watch("64 MiB"):
        run_child()
    with pytest.raises(MemoryBudgetExceeded, match=r"resident memory reached (9|10)"):
        with lowtide.watch("64 MiB", children=True) as w:
            run_child()
    assert not w.true_peak
    with lowtide.watch("64 MiB", kind="mapped", children=True):
        run_child()


def test_pages_shared_with_forked_child_count_once() -> None:
    script = (
        "import lowtide, os, time\n"
        "block = bytearray(b'x') * (128 * 2**20)\n"
        "with lowtide.watch(children=True) as w:\n"
        "    child = os.fork()\n"
        "    if not child: time.sleep(1); os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
        "print(w.growth >> 20)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 32


def test_spike_of_parent_counts_with_children() -> None:
    with pytest.raises(MemoryBudgetExceeded), lowtide.watch("32 MiB", interval=30, children=True):
        touch(64 * MIB)


def test_strict_watch_raises_for_a_child() -> None:
    started = time.monotonic()
    code = CHILD.replace("sleep(1)", "sleep(30)")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        try:
            with pytest.raises(MemoryBudgetExceeded):
                with lowtide.watch("64 MiB", children=True, strict=True, absolute=True):
                    time.sleep(20)
        finally:
            child.kill()
    assert time.monotonic() - started < 15
