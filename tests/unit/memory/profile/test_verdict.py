"""Verdicts on curves whose answer is known."""

from __future__ import annotations

import math

import pytest

from lowtide._memory.profile.recording import Detail, Point, Recording
from lowtide._memory.profile.verdict import judge

MIB, GIB = 2**20, 2**30


def recording(heap: list[float], *, step: float = 16 * MIB, file: list[float] | None = None) -> Recording:
    """A recording with ``step`` bytes read between two points; sizes in MiB."""
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index, anon in enumerate(heap):
        mapped = int((file or [0] * len(heap))[index] * MIB)
        trace.add(Point(index * 0.01, 0, 1, int(anon * MIB), mapped, 0, 0, int(index * step), 0, 0, 0))
    return trace


def noise(index: int, height: float) -> float:
    return height * math.sin(index * 12.9898) * math.cos(index * 78.233)


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
    assert not verdict.grows, name
    assert verdict.line.startswith("bounded: peak ")


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
def test_file_read_in_few_calls_grows_only_if_it_is_kept(kept: float, grows: bool) -> None:
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


def test_memory_of_several_processes_is_counted_once() -> None:
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


def test_no_reads_have_no_slope() -> None:
    verdict = judge(recording([50.0] * 100, step=0))
    assert verdict.per_read is None
    assert verdict.as_json()["mib_per_gib_read"] is None
    assert verdict.line.endswith("hardly any read calls seen")


@pytest.mark.parametrize(("read", "grows"), [(64, False), (1024, True)])
def test_a_program_that_reads_little_but_its_own_modules_does_not_grow_by_them(
    read: int, grows: bool
) -> None:
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
    verdict = judge(trace)
    assert verdict.grows is grows
    if not grows:
        assert verdict.line == "bounded: peak 68 MiB over base, hardly any read calls seen"


def test_recording_without_points_is_bounded() -> None:
    verdict = judge(Recording(["true"], 1, 0.0, 0.01))
    assert not verdict.grows
    assert verdict.peak == 0


def test_json_has_the_documented_names() -> None:
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


def test_device_bytes_without_read_calls_were_read_through_a_map() -> None:
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(100):
        trace.add(Point(index * 0.01, 0, 1, 10 * MIB, 0, 0, 0, 0, index * 10 * MIB, 0, 0))
    assert trace.series().read[-1] == 990 * MIB


def test_shares_of_workers_end_with_them() -> None:
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(100):
        epoch, processes, file = (1, 4, 4000 * MIB) if index < 60 else (2, 1, 1000 * MIB)
        trace.add(Point(index * 0.01, epoch, processes, 0, file, 0, 0, 0, 0, 0, 0))
    whole, part = (0, 4000 * MIB, 0), (0, 1000 * MIB, 0)
    trace.details.add(Detail(0.1, 1, whole, part, {}, 0, 0, 2**40, 0, {}, 0, None, None))
    trace.details.add(Detail(0.98, 2, part, part, {}, 0, 0, 2**40, 0, {}, 0, None, None))
    assert set(trace.series().mapped) == {1000.0 * MIB}


def test_workers_on_one_file_do_not_bulge_between_details() -> None:
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(100):  # four workers, the last three catching up with the first
        trace.add(Point(index * 0.01, 1, 4, 0, (500 + 35 * index) * MIB, 0, 0, 0, 0, 0, 0))
    for time, whole, part in ((0.0, 500, 450), (0.99, 3965, 1000)):
        sizes = (0, whole * MIB, 0), (0, part * MIB, 0)
        trace.details.add(Detail(time, 1, *sizes, {}, 0, 0, 2**40, 0, {}, 0, None, None))
    assert max(trace.series().mapped) == pytest.approx(1000 * MIB, rel=0.01)


def test_spike_between_details_is_seen() -> None:
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
