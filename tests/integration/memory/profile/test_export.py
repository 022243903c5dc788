"""The gauges in OpenMetrics, by the parser of Prometheus' own client."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from lowtide._memory.profile import export
from lowtide.errors import ArgumentError


def test_every_gauge_is_parsed_with_type_unit_and_value() -> None:
    figures: dict[str, float | None] = {gauge.name: 1.5 + place for place, gauge in enumerate(export.GAUGES)}
    text = export.openmetrics("train.py", figures)
    families = list(text_string_to_metric_families(text))
    assert len(families) == len(export.GAUGES)
    for family, gauge in zip(families, export.GAUGES, strict=True):
        (sample,) = family.samples
        assert family.name.startswith(f"lowtide_{gauge.name}")
        assert family.type == ("counter" if gauge.counter else "gauge")
        assert (family.unit, family.documentation) == (gauge.unit, gauge.help)
        assert (sample.value, sample.labels) == (figures[gauge.name], {"target": "train.py"})


def test_unknown_figures_are_left_out() -> None:
    families = list(text_string_to_metric_families(export.openmetrics("x", {"heap": 7, "read": None})))
    assert [family.name for family in families] == ["lowtide_heap_bytes"]
    assert list(text_string_to_metric_families(export.openmetrics("x", {}))) == []


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "ä {x} 1\\n"])
def test_target_name_is_escaped_in_label(name: str) -> None:
    (family,) = text_string_to_metric_families(export.openmetrics(name, {"heap": 7}))
    assert family.samples[0].labels == {"target": name}


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("9464", ("127.0.0.1", 9464)),
        (":9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ("[::1]:9464", ("::1", 9464)),
        ("lowtide.prom", "lowtide.prom"),
        ("/var/x:9464", "/var/x:9464"),
        ("./9464", "./9464"),
    ],
)
def test_destination_parses_port_address_or_file(text: str, where: object) -> None:
    assert export.destination(text) == where


def test_impossible_port_raises() -> None:
    with pytest.raises(ArgumentError, match="expected 0 to 65535"):
        export.destination("65536")
