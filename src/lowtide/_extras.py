"""Libraries that are optional, imported where they are used."""

from __future__ import annotations

import importlib
from typing import Any

from lowtide.errors import MissingExtraError


def library(module: str, purpose: str, extra: str = "prepare") -> Any:
    """Import an optional library, or raise a ``MissingExtraError`` with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"{purpose} requires {package}, which cannot be imported ({error}); "
            f"pip install 'lowtide[{extra}]'"
        ) from error
