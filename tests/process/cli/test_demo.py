"""``lowtide demo`` on the command line: help, and what it refuses at the start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lowtide.cli import cli
from lowtide.demo import tour
from tests.support.process import python


def test_help_imports_nothing_heavy() -> None:
    done = python("""
        import sys
        from click.testing import CliRunner
        from lowtide.cli import cli
        text = CliRunner().invoke(cli, ["demo", "--help"]).output
        assert "--quick" in text and "report.html" in text, text
        assert not {"torch", "rich", "matplotlib", "psutil"} & sys.modules.keys()
    """)
    assert done.returncode == 0, done.stderr


def test_missing_pytorch_is_reported_at_the_start(tmp_path: Path) -> None:
    done = python(
        """
        import sys
        sys.modules["torch"] = None
        from lowtide.cli import main
        sys.argv = ["lowtide", "demo", "--out", sys.argv[1]]
        main()
        """,
        tmp_path / "demo",
    )
    assert done.returncode == 1
    assert "pip install 'lowtide[gpt]'" in done.stderr
    assert "lowtide demo --quick" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "demo").exists()


def test_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    done = CliRunner().invoke(cli, ["demo", "--quick", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "--out" in done.stderr


@pytest.mark.parametrize("quick", [True, False])
def test_full_disk_is_reported_at_once(quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def free(_: str) -> tuple[int, int, int]:
        return sys.maxsize, sys.maxsize, 2**20

    import shutil

    kind = type(shutil.disk_usage(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: kind(*free(path)))
    done = CliRunner().invoke(cli, ["demo", "--out", str(tmp_path / "demo"), *(["--quick"] if quick else [])])
    assert done.exit_code == 1
    assert "not enough free space (1.0 MiB, expected " in done.stderr
    assert done.stdout == ""


def test_interrupt_exits_with_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tour, "tour", interrupted)
    done = CliRunner().invoke(cli, ["demo", "--quick", "--out", str(tmp_path / "demo")])
    assert done.exit_code == 130
    assert "interrupted" in done.output
