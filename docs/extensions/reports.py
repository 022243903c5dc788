"""Reports as pages: ``recordings/NAME.json`` of ``lowtide profile --json`` becomes ``NAME.html``."""

from __future__ import annotations

from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from lowtide._memory import document, report


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """MkDocs calls it once it has found all files, and before it looks where links lead."""
    for found in list(files):
        if found.src_uri.startswith("recordings/") and found.src_uri.endswith(".json"):
            assert found.abs_src_path is not None
            page = report.render(document.load(found.abs_src_path))
            files.append(File.generated(config, found.src_uri.removesuffix("json") + "html", content=page))
    return files
