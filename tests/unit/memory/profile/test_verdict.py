"""Verdicts on curves whose answer is known."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from lowtide._memory.profile.events import Event
from lowtide._memory.profile.recording import Detail, Point, Recording, Shares
from lowtide._memory.profile.verdict import judge

MIB, GIB = 2**20, 2**30


def recording(heap: list[float], *, step: float = 16 * MIB, file: list[float] | None = None) -> Recording:
    """A recording with ``step`` bytes read between two points; sizes in MiB."""
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index, anon in enumerate(heap):
        mapped = int((file or [0] * len(heap))[index] * MIB)
        trace.add(Point(index * 0.01, 0, 1, int(anon * MIB), mapped, 0, 0, int(index * step), 0, 0, 0))
    return trace


def detail(time: float, **figures: Any) -> Detail:
    """A look at files that sees nothing but ``figures``."""
    nothing = Detail(time, 0, (0, 0, 0), (0, 0, 0), {}, 0, 0, 2**40, 0, {}, 0, None, None)
    return nothing._replace(**figures)


def noise(index: int, height: float) -> float:
    return height * math.sin(index * 12.9898) * math.cos(index * 78.233)


SHAPES = {
    "step in the middle": "flat since 100 MiB over base",
    "filled at the start": "loads 120 MiB, then flat for 1.4 s",
    "levelling off": "loads 100 MiB, then flat",
}


@pytest.mark.parametrize("per_gib", [8, 20, 102.4, 1024, 4096])
def test_straight_line_gives_its_slope(per_gib: float) -> None:
    verdict = judge(recording([30 + per_gib * index * 16 / 1024 for index in range(200)]))
    assert verdict.grows
    assert verdict.per_read == pytest.approx(per_gib / 1024, rel=0.02)


@pytest.mark.parametrize(
    ("name", "curve"),
    [
        ("flat", [50.0] * 200),
        ("noise", [50 + noise(index, 20) for index in range(200)]),
        ("saw", [50 + index % 7 * 10 for index in range(200)]),
        ("step in the middle", [50.0] * 100 + [150.0] * 100),
        ("filled at the start", [50 + min(index, 60) * 2 for index in range(200)]),
        ("one spike", [50.0] * 120 + [900.0] + [50.0] * 79),
        ("falling", [500 - index for index in range(200)]),
        ("levelling off", [50 + 100 * (1 - math.exp(-index / 20)) for index in range(200)]),
    ],
)
def test_flat_and_saturating_curves_are_bounded(name: str, curve: list[float]) -> None:
    verdict = judge(recording(curve))
    assert verdict.state == "bounded", name
    assert verdict.line.startswith(f"bounded: {SHAPES.get(name, 'peak ')}")


@pytest.mark.parametrize(
    ("name", "curve"),
    [
        ("with noise", [50 + index + noise(index, 15) for index in range(200)]),
        ("with a saw", [50 + index + index % 5 * 8 for index in range(200)]),
        ("in stairs", [50 + index // 10 * 10 for index in range(200)]),
        ("after a step", [50.0] * 10 + [100 + index for index in range(190)]),
    ],
)
def test_rough_growth_is_growth(name: str, curve: list[float]) -> None:
    verdict = judge(recording(curve))
    assert verdict.grows, name
    assert verdict.per_read == pytest.approx(1 / 16, rel=0.25)


@pytest.mark.parametrize(("kept", "grows"), [(30, False), (95, True)])
def test_file_read_in_few_calls_grows_only_if_kept(kept: float, grows: bool) -> None:
    curve = [20.0] * 20 + [20 + kept * step for step in (1, 1, 1)] * 10
    if grows:
        curve = [20.0] * 20 + [20 + kept * gulp for gulp in (1, 2, 3) for _ in range(10)]
    trace = recording(curve, step=0)
    trace.points[:] = [
        point._replace(requested=max(0, (index - 10) // 10) * 100 * MIB)
        for index, point in enumerate(trace.points)
    ]
    assert judge(trace).grows is grows


def test_larger_slope_is_the_cause() -> None:
    trace = recording([10 + 0.1 * index for index in range(200)], file=[16.0 * index for index in range(200)])
    for index in (0, 100, 199):
        mapped = {
            "/data/big.bin": 16 * index * MIB,
            "/data/other.bin": 2 * index * MIB,
            "/data/still.bin": MIB,
        }
        trace.details.add(
            Detail(index * 0.01, 0, (0, 0, 0), (0, 0, 0), mapped, 0, 0, 2**40, 0, {}, 0, None, None)
        )
    verdict = judge(trace)
    assert verdict.cause == "mapped"
    assert verdict.files == ("/data/big.bin", "/data/other.bin")
    assert verdict.line.endswith("mapped: big.bin and 1 more")


@pytest.mark.parametrize(("heap", "named"), [(100, True), (60, False), (20, False), (0, False)])
def test_heap_growth_beside_larger_mapping_is_reported(heap: int, named: bool) -> None:
    """The kernel takes pages of files back before it kills: a killed pod had the heap."""
    trace = recording([heap * i / 64 for i in range(65)], file=[5.0 * i for i in range(65)])
    line = judge(trace).line
    assert line.startswith("grows: ")
    assert ", mapped" in line
    assert ("; heap too, by " in line) is named
    assert not named or 95 <= int(line.split()[-2]) <= 100


def test_shared_memory_of_several_processes_counts_once() -> None:
    trace = recording([400.0] * 50, file=[4000.0] * 50)
    trace.points[:] = [point._replace(processes=4) for point in trace.points]
    trace.details.add(
        Detail(
            0.0,
            0,
            (400 * MIB, 4000 * MIB, 0),
            (200 * MIB, 1000 * MIB, 0),
            {},
            0,
            0,
            2**40,
            0,
            {},
            0,
            None,
            None,
        )
    )
    trace.details.add(
        Detail(
            1.0,
            0,
            (400 * MIB, 4000 * MIB, 0),
            (200 * MIB, 1000 * MIB, 0),
            {},
            0,
            0,
            2**40,
            0,
            {},
            0,
            None,
            None,
        )
    )
    assert judge(trace).peak == 1200 * MIB


def test_verdict_without_reads_has_no_slope() -> None:
    verdict = judge(recording([50.0] * 100, step=0))
    assert verdict.per_read is None
    assert verdict.as_json()["mib_per_gib_read"] is None
    assert verdict.line == "bounded: peak 0 MiB over base, flat for 1.0 s"


@pytest.mark.parametrize(("read", "loaded"), [(64, 68), (1024, 337)])
def test_program_that_loads_modules_and_computes_is_bounded(read: int, loaded: int) -> None:
    """Modules are read and libraries loaded for the first third; what is computed then takes nothing more."""
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(300):
        part = min(index, 100) / 100
        trace.add(
            Point(index * 0.01, 0, 1, int((10 + 340 * part) * MIB), 0, 0, 0, int(read * part * MIB), 0, 0, 0)
        )
        code = int(200 * part * MIB)
        trace.details.add(
            Detail(index * 0.01, 0, (0, 0, 0), (0, 0, 0), {}, code, code, 2**40, 0, {}, 0, None, None)
        )
    assert judge(trace).line == f"bounded: loads {loaded} MiB, then flat for 2.0 s"


@pytest.mark.parametrize("points", [0, 1, 7])
def test_recording_with_too_few_points_is_unclear(points: int) -> None:
    verdict = judge(recording([50.0] * points))
    assert verdict.state == "unclear"
    assert not verdict.grows
    assert verdict.line.startswith(f"unclear: too short to see a trend ({points} looks in ")
    assert "run it longer" in verdict.line


def test_short_program_is_unclear_unless_it_did_io() -> None:
    trace = recording([10.0] * 20, step=0)
    assert judge(trace).line.startswith("unclear: too short to see a trend (0.19 s after it was loaded)")
    assert judge(recording([10.0] * 30, step=0)).state == "bounded"
    trace.points[:] = [point._replace(written=index * MIB) for index, point in enumerate(trace.points)]
    assert judge(trace).line.startswith("bounded: peak 0 MiB over base, flat for 0.2 s")


def test_late_growth_reports_its_start_time() -> None:
    verdict = judge(recording([50 + 4 * max(0, index - 120) for index in range(200)]))
    assert verdict.since == pytest.approx(1.2, abs=0.1)
    assert verdict.line.startswith("grows since 1.2 s: ")
    assert verdict.as_json()["since"] == pytest.approx(1.2, abs=0.1)


def test_slow_leak_after_a_load_is_growth() -> None:
    verdict = judge(recording([50 + 400 * min(1, index / 10) + 0.3 * index for index in range(400)]))
    assert re.search(r"heap; after a load of 4\d\d MiB$", verdict.line)
    assert verdict.per_read == pytest.approx(0.3 / 16, rel=0.1)


@pytest.mark.parametrize(
    ("curve", "words"),
    [
        ([50.0] * 190 + [150.0] * 10, "memory rose by 100 MiB at the end of the run"),
        ([50 + 60.0 * (index // 70) for index in range(200)], "memory rose by 120 MiB in steps"),
        (
            [50 + 2.0 * min(index, 168) for index in range(200)],
            "memory rose by 332 MiB and is level since 1.6 s",
        ),
    ],
    ids=["late step", "two steps", "just level"],
)
def test_undecided_curve_is_unclear(curve: list[float], words: str) -> None:
    verdict = judge(recording(curve))
    assert verdict.line.startswith(f"unclear: {words}")
    assert "run it longer" in verdict.line


def test_rise_over_time_but_not_over_last_reads_is_unclear() -> None:
    trace = recording([50.0 + index for index in range(200)])
    reads = [index * MIB if index < 190 else (190 + (index - 190) * 30) * MIB for index in range(200)]
    trace.points[:] = [
        point._replace(requested=read, anon=min(point.anon, 240 * MIB))
        for point, read in zip(trace.points, reads, strict=True)
    ]
    assert judge(trace).line.startswith("unclear: memory rises over time by 1")


def test_slow_rise_after_load_is_judged_by_bytes_read() -> None:
    # Four workers that read a mapped file, as recorded: pages that are new to one, and not to the others.
    times = [0.2, 0.3, 0.5, 0.8, 1.3, 1.8, 2.4, 3.0, 3.6, 4.1, 4.7, 5.3, 5.9, 6.4, 7.0, 7.6, 8.2, 8.7, 9.3,
             9.9, 10.5, 11.0, 11.6, 13.0]  # fmt: skip
    reads = [7, 7, 7, 12, 18, 20, 1431, 2272, 2853, 3168, 3448, 3602, 3698, 3787, 3839, 3874, 3900, 3913,
             3921, 3927, 3931, 3937, 3945, 3955]  # fmt: skip
    memory = [117, 143, 169, 177, 201, 236, 1087, 1208, 1261, 1271, 1279, 1282, 1285, 1288, 1292, 1295, 1298,
              1302, 1304, 1308, 1309, 1312, 1316, 241]  # fmt: skip
    trace = recorded(times, reads, memory, 520)
    assert judge(trace).line.startswith("bounded: loads 1178 MiB, then flat")


def test_heap_that_grows_in_steps_is_not_bounded_by_last_step() -> None:
    # A leak inside of a JVM, as recorded: it had just taken more memory than it has filled.
    times = [0.0, 0.05, 0.09, 0.13, 0.17, 0.24, 0.34, 0.46, 0.63, 0.84, 1.11, 1.46, 1.84, 2.2]
    reads = [0, 3, 4, 4, 6, 8, 11, 12, 12, 37, 217, 481, 721, 1037]
    memory = [2, 33, 37, 42, 47, 52, 61, 66, 82, 117, 178, 254, 390, 390]
    assert judge(recorded(times, reads, memory, 200)).line.startswith("unclear: memory rises over time")


def recorded(times: list[float], reads: list[int], memory: list[int], points: int) -> Recording:
    """A recording on straight lines between moments; bytes read and memory in MiB."""
    at = np.linspace(times[0], times[-1], points)
    trace = recording(np.interp(at, times, memory).tolist())
    trace.points[:] = [
        point._replace(time=time - times[0], requested=int(read * MIB))
        for point, time, read in zip(trace.points, at, np.interp(at, times, reads), strict=True)
    ]
    return trace


def test_file_mapped_to_its_end_grows_despite_level_end() -> None:
    file = [10.0 * min(index, 100) for index in range(200)]
    trace = recording([10.0] * 200, step=0, file=file)
    trace.points[:] = [point._replace(touched=point.file) for point in trace.points]
    for size, grows in ((1000, True), (4000, False)):
        trace.details[:] = [
            detail(index * 0.01, mapped={"/d/a.bin": int(file[index]) * MIB}, sizes={"/d/a.bin": size * MIB})
            for index in range(0, 200, 10)
        ]
        assert judge(trace).grows is grows
    assert judge(trace).line == "bounded: loads 1000 MiB, then flat for 1.0 s"
    trace.details[:] = [look._replace(sizes={"/d/a.bin": 1000 * MIB}) for look in trace.details]
    assert (
        judge(trace).line == "grows: 1.0 GiB per GiB read, mapped: a.bin; level since 980 MiB, the whole file"
    )


@pytest.mark.parametrize(("program", "grows"), [(5, True), (200, False)])
def test_file_sampled_before_its_end_counts_as_mapped_to_its_end(program: int, grows: bool) -> None:
    """The curve tells what the last look at files did not see; libraries are not part of the file."""
    file = [program + min(900.0, 10.0 * index) for index in range(200)]
    trace = recording([10.0] * 200, step=0, file=file)
    trace.points[:] = [point._replace(touched=point.file) for point in trace.points]
    size = 900 if grows else 1100
    for index in (0, 50):
        looked = detail(index * 0.01, mapped={"/d/a.bin": 10 * index * MIB}, sizes={"/d/a.bin": size * MIB})
        trace.details.add(looked._replace(program=program * MIB, code=program * MIB))
    assert judge(trace).grows is grows


def test_shared_memory_and_unwritten_pages_are_reported_as_causes() -> None:
    trace = recording([10.0] * 200, step=0)
    trace.points[:] = [point._replace(shared=index * MIB) for index, point in enumerate(trace.points)]
    names = {f"/dev/shm/psm_{index}": MIB * 4 for index in range(3)}
    trace.details[:] = [detail(0.0), detail(1.99, memory_files=names, tmpfs=12 * MIB)]
    assert judge(trace).line == "grows: 99.9 MiB per second, shared memory / tmpfs: psm_0 and 2 more"
    trace = recording([10.0] * 200, step=0, file=[float(index) for index in range(200)])
    pages = {"/d/out.bin": 190 * MIB}
    trace.details[:] = [detail(0.0), detail(1.99, mapped=pages, dirty=pages, sizes={"/d/out.bin": 190 * MIB})]
    assert judge(trace).line == "grows: 99.9 MiB per second, written, not yet on disk: out.bin"


def test_unattributed_tmpfs_writes_are_unclear() -> None:
    trace = recording([10.0] * 200, step=0)
    trace.points[:] = [point._replace(written=2 * index * MIB) for index, point in enumerate(trace.points)]
    trace.details[:] = [detail(0.0), detail(1.99, memory_used=390 * MIB)]
    assert judge(trace).line.startswith("unclear: memory file systems such as /dev/shm rose by 390 MiB")
    trace.points[:] = [point._replace(stored=point.written) for point in trace.points]
    assert judge(trace).state == "bounded", "it was written to a disk"
    trace.points[:] = [point._replace(stored=0) for point in trace.points]
    trace.details[:] = [detail(0.0, memory_files={"/dev/shm/x": 1}), detail(1.99, memory_used=390 * MIB)]
    assert judge(trace).cause == "shared memory / tmpfs", "a file of the command was seen there"


def test_workers_that_end_one_by_one_after_growth_grow() -> None:
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(200):  # two workers that end at 1.7 and 1.9 s
        sizes = [index * MIB if index < end else 0 for end in (170, 190)]
        processes = 1 + sum(size > 0 for size in sizes)
        trace.add(Point(index * 0.01, 0, processes, sum(sizes), 0, 0, 0, sum(sizes), 0, 0, 0))
        if not index % 10:
            whole = (float(sum(sizes)), 0.0, 0.0)
            trace.shares.add(Shares(index * 0.01, 0, 0, whole, whole))
    assert judge(trace).grows


def test_rise_until_workers_ended_early_is_unclear() -> None:
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(200):
        size = index * 4 * MIB if index < 120 else 5 * MIB
        trace.add(Point(index * 0.01, index // 120, 3 - 2 * (index // 120), size, 0, 0, 0, size, 0, 0, 0))
        trace.shares.add(Shares(index * 0.01, index // 120, 0, (size, 0.0, 0.0), (size, 0.0, 0.0)))
    assert judge(trace).line.startswith("unclear: memory rose by 476 MiB until processes ended")


def test_memory_of_consecutive_process_pools_is_not_summed() -> None:
    """Two pools, one after the other: what the first released is not missed."""
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(234):
        wave, place = min(index // 70, 2), index % 70
        size = place * (4, 8)[wave] * MIB if wave < 2 else 5 * MIB
        trace.add(Point(index * 0.01, wave, (3, 3, 1)[wave] if place else 1, size, 0, 0, 0, 0, 0, 0, 0))
        trace.shares.add(Shares(index * 0.01, wave, 0, (size, 0.0, 0.0), (size, 0.0, 0.0)))
    assert not judge(trace).grows


def test_unsampled_copies_of_shared_pages_are_unclear() -> None:
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(200):  # two processes share 100 MiB; pages are touched all the time
        trace.add(Point(index * 0.01, 1, 2, 200 * MIB, 0, 0, 0, 0, 0, 0, index * 1000))
    trace.shares.add(Shares(0.0, 1, 0, (200.0 * MIB, 0.0, 0.0), (100.0 * MIB, 0.0, 0.0)))
    assert judge(trace).line.startswith(
        "unclear: too few looks at the pages that processes share: up to 100 MiB"
    )
    for index in (1, 2, 3, 100):  # the looks show that none of them is copied
        trace.shares.add(
            Shares(index / 100, 1, index * 1000, (200.0 * MIB, 0.0, 0.0), (100.0 * MIB, 0.0, 0.0))
        )
    assert judge(trace).state == "bounded"


def test_copy_on_write_growth_continues_after_last_sample() -> None:
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(200):
        trace.add(Point(index * 0.01, 1, 2, 400 * MIB, 0, 0, 0, 0, 0, 0, index * 128))
    for time, minor, share in ((0.0, 0, 200), (0.5, 6400, 225), (1.0, 12800, 250)):
        trace.shares.add(Shares(time, 1, minor, (400.0 * MIB, 0.0, 0.0), (share * MIB, 0.0, 0.0)))
    heap = trace.series().heap
    assert heap[-1] == pytest.approx(299.5 * MIB, rel=0.01)
    assert judge(trace).line == "grows: 50.0 MiB per second, heap"


def test_unknown_size_of_a_mapped_file_does_not_cap_the_curve() -> None:
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(100):
        size = index * 10 * MIB
        trace.add(Point(index * 0.01, 1, 4, 0, size, 0, size, 0, 0, 0, 0))
        trace.shares.add(Shares(index * 0.01, 1, 0, (0.0, size, 0.0), (0.0, size, 0.0)))
    trace.details[:] = [detail(0.1, data_size=1000 * MIB), detail(0.99, data_size=20 * MIB)]
    assert trace.series().mapped[-1] == 990 * MIB, "the largest size that was seen"
    trace.details[:] = [detail(0.1, data_size=20 * MIB), detail(0.99, data_size=None)]
    assert trace.series().mapped[-1] == 990 * MIB, "no limit where one is unknown"
    trace.details[:] = [detail(0.1, data_size=500 * MIB)]
    assert trace.series().mapped[-1] == 500 * MIB


def test_json_has_documented_keys() -> None:
    figures = judge(recording([30 + index for index in range(200)])).as_json()
    assert figures["grows"] is True
    assert figures["verdict"].startswith("grows: ")
    assert figures["base_mib"] == pytest.approx(30, abs=3)
    assert figures["peak_mib"] == pytest.approx(229)
    assert figures["mib_per_gib_read"] == pytest.approx(64, rel=0.02)


def test_long_read_is_not_counted_twice() -> None:
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(100):  # the device gives, the call returns at the end
        asked = GIB if index == 99 else 0
        trace.add(Point(index * 0.01, 0, 1, index * 10 * MIB, 0, 0, 0, asked, index * GIB // 99, 0, 0))
    assert trace.series().read[-1] == GIB


def test_device_bytes_without_read_calls_count_as_mapped_reads() -> None:
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(100):
        trace.add(Point(index * 0.01, 0, 1, 10 * MIB, 0, 0, 0, 0, index * 10 * MIB, 0, 0))
    assert trace.series().read[-1] == 990 * MIB


def test_shares_of_ended_workers_are_dropped() -> None:
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(100):
        epoch, processes, file = (1, 4, 4000 * MIB) if index < 60 else (2, 1, 1000 * MIB)
        trace.add(Point(index * 0.01, epoch, processes, 0, file, 0, 0, 0, 0, 0, 0))
    whole, part = (0, 4000 * MIB, 0), (0, 1000 * MIB, 0)
    trace.details.add(Detail(0.1, 1, whole, part, {}, 0, 0, 2**40, 0, {}, 0, None, None))
    trace.details.add(Detail(0.98, 2, part, part, {}, 0, 0, 2**40, 0, {}, 0, None, None))
    assert set(trace.series().mapped) == {1000.0 * MIB}


def test_mapping_shared_by_workers_does_not_bulge_between_details() -> None:
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(100):  # four workers, the last three catching up with the first
        trace.add(Point(index * 0.01, 1, 4, 0, (500 + 35 * index) * MIB, 0, 0, 0, 0, 0, 0))
    for time, whole, part in ((0.0, 500, 450), (0.99, 3965, 1000)):
        sizes = (0, whole * MIB, 0), (0, part * MIB, 0)
        trace.details.add(Detail(time, 1, *sizes, {}, 0, 0, 2**40, 0, {}, 0, None, None))
    assert max(trace.series().mapped) == pytest.approx(1000 * MIB, rel=0.01)


def test_spike_between_details_is_kept() -> None:
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(100):
        trace.add(Point(index * 0.01, 1, 2, (900 if index == 50 else 100) * MIB, 0, 0, 0, 0, 0, 0, 0))
    for time in (0.0, 0.99):
        trace.details.add(
            Detail(time, 1, (100 * MIB, 0, 0), (100 * MIB, 0, 0), {}, 0, 0, 2**40, 0, {}, 0, None, None)
        )
    assert max(trace.series().heap) == 900 * MIB


def test_mapped_memory_is_capped_by_the_file_size() -> None:
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(100):  # the last look was early, and four workers continue through 1000 MiB
        trace.add(Point(index * 0.01, 1, 4, 0, 40 * index * MIB, 0, 0, 0, 0, 0, 0))
    sizes = (0, 400 * MIB, 0), (0, 380 * MIB, 0)
    cached = {"/a": 1000 * MIB}
    trace.details.add(
        Detail(0.1, 1, *sizes, {"/a": 380 * MIB}, 0, 0, 1000 * MIB, 0, cached, 620 * MIB, None, None)
    )
    series = trace.series()
    assert max(series.mapped) == 1000 * MIB
    assert max(m + c for m, c in zip(series.mapped, series.cache, strict=True)) <= 1000 * MIB + 1
    assert series.cache[-1] == 0


def test_unclear_verdict_of_oom_killed_command_does_not_ask_for_a_longer_run() -> None:
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(100):  # a second in which memory jumps at the end
        trace.add(Point(index * 0.01, 1, 1, (120 if index >= 95 else 10) * MIB, 0, 0, 0, 0, 0, 0, 0))
    assert judge(trace).state == "unclear"
    assert "run it longer" in judge(trace).line
    trace.events = [Event("oom_kill", 1.0, 1.0, "the kernel OOM-killed process 1")]
    assert "run it longer" in judge(trace).line, "a worker was killed, and the command continued"
    trace.status = -9
    assert "run it longer" not in judge(trace).line
    assert judge(trace).line.endswith(
        "then the kernel OOM-killed it; run it with a higher limit to see whether memory continues to grow"
    )
