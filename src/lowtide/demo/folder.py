"""The folder of a demo: its own to refresh, and nobody else's."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lowtide._io.atomic import write_file
from lowtide.errors import ArgumentError, writing

_KEY = "lowtide_demo"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Folder:
    """Where each thing of a demo lies."""

    path: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", os.path.normpath(self.path))

    def __truediv__(self, name: str) -> str:
        return os.path.join(self.path, name)

    @property
    def mark(self) -> str:
        """What tells a demo's folder from others; at the end it holds the figures."""
        return self / "demo.json"

    @property
    def text(self) -> str:
        return self / "text"

    @property
    def corpus(self) -> str:
        return self / "corpus"

    @property
    def scratch(self) -> str:
        """Of the array: large, and there only while it is walked through."""
        return self / "scratch"

    @property
    def run(self) -> str:
        return self / "run"

    @property
    def curves(self) -> str:
        return self / "curves.svg"

    @property
    def report(self) -> str:
        return self / "report.html"

    def begin(self) -> None:
        """Make the folder, or take away what an earlier demo left there. Others are refused."""
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise ArgumentError(f"{self.path}: is a file, and the demo needs a folder; name one with --out")
        try:
            os.makedirs(self.path, exist_ok=True)
            if os.listdir(self.path) and not self._is_a_demo():
                raise ArgumentError(
                    f"{self.path}: holds other files and no demo (there is no {os.path.basename(self.mark)} "
                    "of one); name another folder with --out, or an empty one"
                )
            for folder in (self.text, self.corpus, self.run, self.scratch):
                if os.path.isdir(folder):
                    shutil.rmtree(folder)
            for file in (self.curves, self.report):
                with suppress(FileNotFoundError):
                    os.unlink(file)
        except OSError as error:
            raise writing(self.path, error) from error
        self.keep({})

    def keep(self, figures: dict[str, Any]) -> None:
        """Write the mark, with what there is to tell."""
        write_file(self.mark, (json.dumps({_KEY: _VERSION, **figures}) + "\n").encode())

    def _is_a_demo(self) -> bool:
        try:
            with open(self.mark, encoding="utf-8") as file:
                found = json.load(file)
        except (OSError, ValueError):
            return False
        return isinstance(found, dict) and _KEY in found
