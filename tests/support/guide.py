"""The README and the guide as programs: the code blocks of a page, run in order, in one folder.

- ``python`` and ``pycon`` run in this process, one after another with the same names; ``pycon`` shows
  results, and these are compared.
- ``sh`` runs as a script and must end well. ``console`` has commands behind ``$``, and what is shown below a
  command is compared with what it says; ``...`` stands for anything.
- A block with ``title="run.toml"`` is that file, for the blocks below it.
- ``text`` is not code.

Two comments may stand before a block. ``<!-- figures vary -->`` lets any number stand for any other one.
``<!-- not run: REASON -->`` leaves the block out; ``NOT_RUN`` lists what may be left out, and why.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]

NOT_RUN = {
    "pip install ": "asks the package index",
    "make ": "takes minutes",
    "python -m benchmarks": "takes minutes",
    "lowtide demo": "takes minutes",
    "torchrun ": "needs several GPUs",
    "dask ": "needs several machines",
    "from dask.distributed import Client": "needs several machines",
    "lowtide prepare /shared/web ": "needs several machines",
    "kubectl ": "needs a pod",
}
"""How the commands of a block that is not run start, or its first line if it is Python, and the reason."""

LANGUAGES = {"python", "pycon", "sh", "console", "toml", "text"}
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_COMMENT = re.compile(r"<!-- (not run: (?P<reason>.+)|figures vary) -->\s*")
_TITLE = re.compile(r'title="([^"]+)"')
_FIGURE = re.compile(r"\d[\d,.]*( ?[KMGT]?i?B\b)?")
_SECONDS = 120


def pages() -> list[Path]:
    """The README and every page of the guide."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True, slots=True)
class Block:
    """A code block of a page."""

    page: Path
    line: int
    """Of its first line of code."""
    language: str
    source: str
    title: str | None = None
    reason: str | None = None
    """Why it is not run, if it is not."""
    figures_vary: bool = False

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """What a person would type: for shells each command, else the first line."""
        lines = self.source.splitlines()
        if self.language == "console":
            return [line[2:] for line in lines if line.startswith("$ ")]
        if self.language == "sh":
            return [line for line in lines if line and not line.startswith(("#", " "))]
        return lines[:1]


def blocks(page: Path) -> Iterator[Block]:
    """The code blocks of a page; one that is indented has no language."""
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    comment: re.Match[str] | None = None
    for token in tokens:
        if token.type == "html_block":
            comment = _COMMENT.fullmatch(token.content)
            continue
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            language, _, rest = token.info.partition(" ")
            title = _TITLE.search(rest)
            yield Block(
                page,
                token.map[0] + 2,
                language,
                token.content,
                title[1] if title else None,
                comment["reason"] if comment else None,
                bool(comment and not comment["reason"]),
            )
        comment = None


class Reader:
    """Somebody who types in what a page says, in a folder that holds the files of which it speaks."""

    def __init__(self, folder: Path, names: dict[str, Any], train: str = "") -> None:
        """``names`` are those that the page takes as given; ``train`` is added to ``lowtide train``."""
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "__main__", **names}
        self._environment = {
            **os.environ,
            "PATH": f"{_programs(folder, train)}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),  # pages may tell to write there
            "XDG_CACHE_HOME": os.path.expanduser("~/.cache"),
            "COLUMNS": "100",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            # Of all plugins that are installed here only lowtide's: the others take seconds to load.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": "lowtide.memory.pytest_plugin",
        }

    def run(self, block: Block) -> None:
        """Do what a block says; an error that names the page and the line if that does not work."""
        if block.title is not None:
            (self.folder / block.title).write_text(block.source, encoding="utf-8")
        elif block.language == "python":
            # Empty lines before it, so that a traceback shows the page and its line.
            exec(compile("\n" * (block.line - 1) + block.source, str(block.page), "exec"), self.names)
            for name in re.findall(r"^def (test_\w+)\(\)", block.source, re.MULTILINE):
                self.names[name]()  # else a test that is shown would be made and never run
        elif block.language == "pycon":
            self._example(block)
        elif block.language == "sh":
            self._shell(block, block.source)
        elif block.language == "console":
            for command, expected in _session(block):
                words = self._shell(block, command)
                if expected:
                    _compare(block, command, expected, words)

    def _example(self, block: Block) -> None:
        result = doctest.DocTestParser().get_doctest(
            block.source, self.names, block.where, str(block.page), block.line - 1
        )
        message: list[str] = []
        doctest.DocTestRunner(optionflags=_FLAGS).run(result, out=message.append, clear_globs=False)
        self.names.update(result.globs)
        assert not message, "".join(message)

    def _shell(self, block: Block, script: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder, env=self._environment, text=True, timeout=_SECONDS, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert not done.returncode, (
            f"{block.where}: exit status {done.returncode} of\n{script}\n{done.stdout}"
        )
        return done.stdout


def _session(block: Block) -> Iterator[tuple[str, str]]:
    """Each command of a console and what is shown below it."""
    command, shown = "", ""
    for line in block.source.splitlines(keepends=True):
        if line.startswith("$ "):
            if command:
                yield command, shown
            command, shown = line[2:], ""
        elif line.startswith("> "):
            command += line[2:]
        else:
            shown += line
    assert command, f"{block.where}: a console without a command behind $"
    yield command, shown


def _compare(block: Block, command: str, expected: str, words: str) -> None:
    if block.figures_vary:
        expected, words = (_FIGURE.sub("#", text) for text in (expected, words))
    assert doctest.OutputChecker().check_output(expected, words, _FLAGS), (
        f"{block.where}: {command}\nis shown to say\n{expected}\nand says\n{words}"
    )


def _programs(folder: Path, train: str) -> Path:
    """A folder of programs to be found first, so that ``lowtide`` and ``python`` are those under test."""
    programs = folder / ".programs"
    programs.mkdir()
    small = f'if [ "${{1:-}}" = train ]; then set -- "$@" {train}; fi\n'
    for name, module, first in (
        ("lowtide", "-m lowtide.cli", small),
        ("pytest", "-m pytest", ""),
        ("python", "", ""),
    ):
        path = programs / name
        path.write_text(f'#!/bin/bash\n{first}exec "{sys.executable}" {module} "$@"\n')
        path.chmod(0o755)
    return programs
