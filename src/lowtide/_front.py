"""Public names that are imported when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def front(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Create ``__getattr__`` and ``__dir__`` of a package from its public names and their modules.

    A name whose module is ``package.name`` stands for that module.

    >>> getattr_, dir_ = front("lowtide", {"LowtideError": "lowtide.errors", "errors": "lowtide.errors"})
    >>> getattr_("LowtideError").__name__, getattr_("errors").__name__, dir_()
    ('LowtideError', 'lowtide.errors', ['LowtideError', 'errors'])
    """

    def __getattr__(name: str) -> Any:  # noqa: N807 - it becomes the package's
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = import_module(names[name])
        value = home if names[name] == f"{package}.{name}" else getattr(home, name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:  # noqa: N807
        return sorted(names)

    return __getattr__, __dir__
