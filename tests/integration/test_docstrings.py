"""Docstrings of public functions document every parameter, and no parameter that does not exist."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

FRONTS = ("lowtide", "lowtide.memory", "lowtide.gpt", "lowtide.torch", "lowtide.nanogpt", "lowtide.dask")

CREATED_BY = {
    "lowtide.Array": "lowtide.open",
    "lowtide.Batches": "lowtide.Corpus.batches",
    "lowtide.Chunks": "lowtide.Array.chunks",
    "lowtide.Corpus": "lowtide.corpus",
    "lowtide.Mixture": "lowtide.mix",
    "lowtide.WritableArray": "lowtide.create",
    "lowtide.Writer": "lowtide.create",
    "lowtide.Zip": "lowtide.zip",
    "lowtide.memory.Heap": "lowtide.memory.heap",
    "lowtide.memory.Snapshot": "lowtide.memory.snapshot",
    "lowtide.torch.TorchDocumentBatches": "lowtide.Batches.torch",
}
"""Classes that users do not instantiate, and what creates them, which documents the parameters."""


def public(front: str) -> Iterator[tuple[str, Any]]:
    """The functions of a front, its classes, and their public methods."""
    module = importlib.import_module(front)
    names = getattr(module, "_NAMES", None) or [
        name for name, value in vars(module).items() if getattr(value, "__module__", None) == front
    ]
    for name in names:
        value = getattr(module, name)
        if name.startswith("_") or inspect.ismodule(value) or not callable(value):
            continue
        if inspect.isclass(value) and issubclass(value, BaseException):
            continue
        yield f"{front}.{name}", value
        if inspect.isclass(value):
            for method, function in inspect.getmembers(value):
                is_function = inspect.isfunction(inspect.unwrap(function))
                if is_function and not method.startswith("_") and function.__module__.startswith("lowtide"):
                    yield f"{front}.{name}.{method}", function


CALLABLES = {name: value for front in FRONTS for name, value in public(front)}


def parameters(value: Any) -> set[str]:
    """The parameters that a caller may pass."""
    try:
        signature = inspect.signature(value)
    except ValueError:  # a class without an ``__init__`` of Python
        return set()
    return {
        name
        for name, parameter in signature.parameters.items()
        if name not in ("self", "cls")
        and not name.startswith("_")
        and parameter.kind != parameter.VAR_KEYWORD
    }


def documented(value: Any) -> set[str]:
    """The parameters in the numpydoc section of a docstring."""
    text = inspect.getdoc(value) or ""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=\n\w[\w ]*\n-{3,}\n|\Z)", text, re.DOTALL | re.MULTILINE)
    lines = re.findall(r"^(\*{0,2}\w[\w, *]*?)(?: : .*)?$", section[1], re.MULTILINE) if section else []
    return {name.strip(" *") for line in lines for name in line.split(",")}


@pytest.mark.parametrize("name", CALLABLES)
def test_parameters_are_documented(name: str) -> None:
    assert name in CREATED_BY or parameters(CALLABLES[name]) - documented(CALLABLES[name]) == set()


@pytest.mark.parametrize("name", CALLABLES)
def test_documented_parameters_exist(name: str) -> None:
    value = CALLABLES[name]
    accepts_any = not inspect.isclass(value) and any(
        parameter.kind == parameter.VAR_KEYWORD for parameter in inspect.signature(value).parameters.values()
    )
    extra = documented(value) - parameters(value)
    assert not extra or accepts_any


def test_creators_are_public() -> None:
    assert CREATED_BY.keys() | set(CREATED_BY.values()) <= CALLABLES.keys()
