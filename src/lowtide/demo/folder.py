"""The folder of a demo, which only a later demo may overwrite."""

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
    """The paths of a demo."""

    path: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", os.path.normpath(self.path))

    def __truediv__(self, name: str) -> str:
        return os.path.join(self.path, name)

    @property
    def mark(self) -> str:
        """The file that marks a demo's folder; at the end it has the figures."""
        return self / "demo.json"

    @property
    def text(self) -> str:
        return self / "text"

    @property
    def corpus(self) -> str:
        return self / "corpus"

    @property
    def scratch(self) -> str:
        """The folder of the array: large, and removed after the walks."""
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

    def prepare(self) -> None:
        """Create the folder, or remove what an earlier demo left there. Refuse any other."""
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise ArgumentError(f"{self.path}: is a file, not a folder; pass a folder with --out")
        try:
            os.makedirs(self.path, exist_ok=True)
            if os.listdir(self.path) and not self._is_a_demo():
                raise ArgumentError(
                    f"{self.path}: has files, but not those of a demo (no {os.path.basename(self.mark)}); "
                    "pass another folder, or an empty one, with --out"
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
        """Write the mark, with the figures."""
        write_file(self.mark, (json.dumps({_KEY: _VERSION, **figures}) + "\n").encode())

    def _is_a_demo(self) -> bool:
        try:
            with open(self.mark, encoding="utf-8") as file:
                content = json.load(file)
        except (OSError, ValueError):
            return False
        return isinstance(content, dict) and _KEY in content
