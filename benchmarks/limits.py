"""Where loaders are run: in their own process, in a memory limit, with a read-ahead, on a slow disk."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.cgroup import CgroupUnavailableError, LimitedGroup

USUAL_READ_AHEAD = 128 * 1024  # what Linux gives to most devices
OPERATIONS, BANDWIDTH = 3000, 125_000_000  # reads and bytes per second of a usual cloud disk
_BLKIO = Path("/sys/fs/cgroup/blkio")
_START = 120  # seconds in which a loader must have imported what it needs, even inside a limit


class LoaderEndedError(RuntimeError):
    """The process of a loader is gone, or does not answer; the message says how it ended."""


class LoaderProcess:
    """A loader in its own process, if need be inside a memory cgroup or under another Python."""

    def __init__(
        self,
        name: str,
        folder: str,
        group: LimitedGroup | None = None,
        *,
        module: str = "benchmarks.loaders",
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        enter: Sequence[str] = (),
    ) -> None:
        command = [*enter, python, "-m", module, name, folder]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        self._group = group
        self._process = subprocess.Popen(
            group.command(command) if group else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=Path(__file__).parents[1],
            # Peers keep what they unpack in TMPDIR; it goes with the corpus.
            env={**os.environ, "TMPDIR": folder, **(environment or {})},
        )
        try:
            self.started = self.answer()
        except BaseException:
            self.close()
            raise

    def run(self, *, batches: int | None = None, seconds: float | None = None) -> dict[str, Any]:
        """Make so many batches, or continue for so long; what that took."""
        self.ask(batches=batches, seconds=seconds)
        return self.answer()

    def ask(self, **expected: Any) -> None:
        """Send a request; what is None is left out."""
        assert self._process.stdin is not None
        try:
            print(
                json.dumps({key: value for key, value in expected.items() if value is not None}),
                file=self._process.stdin,
                flush=True,
            )
        except BrokenPipeError:
            raise LoaderEndedError(self._how_it_ended()) from None

    def answer(self, timeout: float = _START) -> dict[str, Any]:
        """What the process says to the oldest request not yet answered."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout)
        if not ready:
            raise LoaderEndedError(f"no answer in {timeout:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise LoaderEndedError(self._how_it_ended())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _how_it_ended(self) -> str:
        status = self._process.wait(30)
        if self._group is not None and self._group.oom_kills():
            return "OOM-killed"
        self._errors.seek(0)
        last = self._errors.read().strip().splitlines()[-1:]
        return f"exit status {status}: {' '.join(last)[:200]}"

    def close(self) -> None:
        """End the process. What it mapped is free from then on, so that the next one can start cold."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._errors.close()

    def __enter__(self) -> LoaderProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _setting(path: str) -> Path:
    device = os.stat(path).st_dev
    return Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")


def read_ahead(path: str) -> int | None:
    """Bytes that the device below ``path`` reads ahead, where the kernel tells."""
    try:
        return int(_setting(path).read_text()) * 1024
    except OSError:
        return None


def _loop_settings() -> dict[Path, str]:
    """The read-ahead of every loop device, in use or not."""
    return {path: path.read_text() for path in Path("/sys/block").glob("loop*/queue/read_ahead_kb")}


class NoLoopDeviceError(RuntimeError):
    """No file system could be made on a loop device; the message says why."""


@contextmanager
def loop_mounted(folder: str, nbytes: int) -> Iterator[str]:
    """An ext4 of ``nbytes`` on a loop device with direct I/O and the usual read-ahead; gone at the end.

    A loop device has its own read-ahead, so that no setting of the machine is touched. With direct I/O
    nothing is cached a second time in the file below.
    """
    if os.geteuid() != 0:
        raise NoLoopDeviceError("needs root, to mount an image")
    image, mounted = os.path.join(folder, "ext4.img"), os.path.join(folder, "mounted")
    os.mkdir(mounted)
    device, before = "", _loop_settings()
    try:
        with open(image, "wb") as file:
            file.truncate(nbytes)
        _tool("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-m", "0", image)
        device = _tool("losetup", "--find", "--show", "--direct-io=on", image)
        _tool("mount", device, mounted)
        try:
            # With direct I/O a loop device starts with a multiple of what the device below it likes.
            _setting(mounted).write_text(str(USUAL_READ_AHEAD // 1024))
            yield mounted
        finally:
            _tool("umount", mounted)
    finally:
        if device:
            _tool("losetup", "--detach", device)
            # Detaching does not undo it.
            setting = Path("/sys/block", os.path.basename(device), "queue/read_ahead_kb")
            setting.write_text(before.get(setting, str(USUAL_READ_AHEAD // 1024)))
        if os.path.exists(image):
            os.remove(image)
        os.rmdir(mounted)


def _tool(*command: str) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        raise NoLoopDeviceError(f"{command[0]} is not installed") from None
    except subprocess.CalledProcessError as error:
        raise NoLoopDeviceError(f"{' '.join(command)}: {error.stderr.strip()}") from None


@contextmanager
def cloud_disk(path: str) -> Iterator[list[str]]:
    """A command that enters a group in which the device below ``path`` is as slow as a usual cloud disk."""
    if not os.access(_BLKIO, os.W_OK):
        raise CgroupUnavailableError("the blkio controller of cgroup v1 cannot be used here")
    group = _BLKIO / f"lowtide-bench-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    try:
        device = os.stat(path).st_dev
        name = f"{os.major(device)}:{os.minor(device)}"
        (group / "blkio.throttle.read_iops_device").write_text(f"{name} {OPERATIONS}")
        (group / "blkio.throttle.read_bps_device").write_text(f"{name} {BANDWIDTH}")
        yield ["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group)]
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    """Remove a group; what a loader started in it may still be on its way out."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
