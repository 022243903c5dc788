"""The options, and memory that does not depend on how long a document is."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide._prepare.inputs.kind import ReadOptions
from lowtide.errors import ArgumentError


@pytest.mark.parametrize(
    "wrong",
    [{"split_on": ""}, {"split_on": "\ud800"}],
)
def test_invalid_read_options_raise(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        ReadOptions(**wrong)
