"""The folder of a demo, which only another demo may overwrite."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from typing import Any

from lowtide._io.atomic import write_file
from lowtide.errors import ArgumentError, write_errors

_KEY = "lowtide_demo"
_VERSION = 1


class Folder:
    """The paths of a demo."""

    def __init__(self, path: str) -> None:
        self.path = path = os.path.normpath(path)
        self.mark = os.path.join(path, "demo.json")  # marks a demo's folder; at the end it has the figures
        self.text = os.path.join(path, "text")
        self.corpus = os.path.join(path, "corpus")
        self.scratch = os.path.join(path, "scratch")  # for the array: large, and removed after the walks
        self.run = os.path.join(path, "run")
        self.curves = os.path.join(path, "curves.svg")
        self.report = os.path.join(path, "report.html")

    def prepare(self) -> None:
        """Create the folder, or remove the files of an earlier demo; refuse a folder with other files."""
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise ArgumentError(f"{self.path}: is a file, not a folder; pass a folder with --out")
        with write_errors(self.path):
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
