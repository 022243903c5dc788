"""``lowtide doctor``: one line per finding."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from lowtide.cli import cli


def test_each_finding_has_a_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["doctor", str(tmp_path)])
    assert done.exit_code == 0
    for name in (
        "RWF_NOWAIT",
        "RWF_DONTCACHE",
        "posix_fadvise",
        "page cache",
        "memory",
        "read-ahead",
        "descriptors",
    ):
        assert f" {name} " in done.output


def test_json_output_lists_findings(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["doctor", "--json", str(tmp_path)])
    findings = json.loads(done.output)
    assert {"name", "value", "fine", "advice"} == set(findings[0])


def test_missing_path_exits_with_a_message(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["doctor", str(tmp_path / "none")])
    assert done.exit_code == 1
    assert "no such file" in done.output
