"""`--version` and every `--help`: good reading, and quick."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap

import click
import pytest

import lowtide
from lowtide.cli import COMMANDS, cli

HEAVY = {
    "dask", "datasets", "distributed", "h5py", "matplotlib", "pandas", "pyarrow", "rich", "safetensors",
    "scipy", "tiktoken", "tokenizers", "torch", "transformers", "wandb", "zstandard",
}  # fmt: skip


def run(*arguments: str, columns: int = 100) -> str:
    """What the program prints, on a terminal of this width; it must succeed and print no errors."""
    command = [sys.executable, "-W", "error", "-m", "lowtide.cli", *arguments]
    environment = {**os.environ, "COLUMNS": str(columns)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def command(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


def test_version_is_printed() -> None:
    assert run("--version") == f"lowtide {lowtide.__version__}\n"


def test_top_level_help_lists_every_command() -> None:
    result = run("--help")
    assert result == run("-h") == run("--help", columns=80)
    for name, output in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(output)}$", result, re.MULTILINE)
        assert re.fullmatch(r"[A-Z][a-z]+ .*\.", output), "a sentence that starts with a verb"
    assert "lowtide COMMAND --help" in result
    for word in re.findall(r"^ +lowtide ([a-z]+)", result, re.MULTILINE):
        assert word in COMMANDS


def test_missing_command_shows_help() -> None:
    done = subprocess.run([sys.executable, "-m", "lowtide.cli"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert all(name in done.stdout + done.stderr for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_usage_description_and_options(name: str) -> None:
    result = run(name, "--help")
    assert result.startswith(f"Usage: lowtide {name} ")
    assert max(map(len, result.splitlines())) <= 100
    output = textwrap.dedent(result.split("\n\n")[1])
    assert re.fullmatch(r"[A-Z].*[\w)\]]\.", output, re.DOTALL), f"a sentence, got {output!r}"
    options = result.partition("\nCommands:\n")[0].rstrip()  # a group lists its commands last
    assert options.splitlines()[-1].split()[:2] == ["-h,", "--help"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help(name: str) -> None:
    for parameter in command(name).params:
        if not isinstance(parameter, click.Option) or parameter.hidden:
            continue
        output = parameter.help or ""
        flag = parameter.opts[-1]
        assert len(output) > 5, flag
        assert output[0].isupper() or output.split()[0].strip(",;:") in (
            "byte",
            "cpu",
            "dtype",
            "wsd",
            "0",
        ), f"{flag}: {output}"
        assert re.search(r"[.…\]]$", output), f"{flag}: {output}"
        # A number or a text is called by what it is, or by X and N; RANGE says nothing.
        assert "RANGE" not in parameter.make_metavar(click.Context(command(name))), flag


@pytest.mark.parametrize("name", COMMANDS)
def test_help_examples_are_valid_calls(name: str) -> None:
    examples = re.findall(r"^ {6}(\S.*)$", run(name, "--help"), re.MULTILINE)
    assert examples
    for line in examples:
        called = re.search(rf"\blowtide(?:\.cli)? {name}\b([^>)|]*)", line)
        assert called, line
        command(name).make_context(name, shlex.split(called[1]))  # raises what a wrong call raises


MODULES = """
import json, sys
from lowtide.cli import main
try:
    main()
except SystemExit:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)], ids=str
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    command = [sys.executable, "-c", MODULES, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stderr))
    assert not loaded & HEAVY
    if arguments[0].startswith("-"):
        assert "numpy" not in loaded
