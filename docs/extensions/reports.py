"""Reports as pages: ``recordings/NAME.json`` of ``lowtide profile --save`` becomes ``NAME.html``."""

from __future__ import annotations

from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from lowtide._memory.profile import document, report


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """MkDocs calls it once it has found all files, and before it looks where links lead."""
    for result in list(files):
        if result.src_uri.startswith("recordings/") and result.src_uri.endswith(".json"):
            assert result.abs_src_path is not None
            page = report.render(document.load(result.abs_src_path))
            files.append(File.generated(config, result.src_uri.removesuffix("json") + "html", content=page))
    return files
