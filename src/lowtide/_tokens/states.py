"""States of batches: which of them fit the batches that they are loaded into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lowtide._printable import changes
from lowtide._tokens.schedules import by_step, past, value_at
from lowtide.errors import StateError


def checked_step(state: Mapping[str, Any], now: dict[str, Any], sizes: dict[int, int], fixed: bool) -> int:
    """The step of a state, if it is of the same corpus and settings.

    Parameters
    ----------
    state
        What was saved.
    now
        The settings of these batches.
    sizes
        Their batch sizes by step.
    fixed
        Whether all batch sizes must be the same, and not only those before the step of the state.
    """
    step, saved = state.get("step"), state.get("settings")
    if not isinstance(step, int) or step < 0 or not isinstance(saved, Mapping):
        raise StateError(
            f"not a state of batches (expected 'step' and 'settings', got {sorted(map(str, state))}); "
            f"pass what state_dict() returned"
        )
    saved = plain(saved)
    before = _batch_sizes(saved)
    vary = before is not None and (len(before) > 1 or len(sizes) > 1)
    if before is not None and vary and not fixed and past(before, step) == past(sizes, step):
        now = {**now, "batch_size": saved["batch_size"]}
    if differences := changes(saved, now):
        remedy = ""
        if step and before is not None and {**saved, "batch_size": now["batch_size"]} == now and not fixed:
            # Samples are numbered through all steps, so that the next one is known, whatever the batch is.
            continued = {**past(before, step), step: value_at(sizes, step)}
            remedy = f"; to continue with the next window pass batch_size={continued}"
        raise StateError(
            f"the state was saved with another corpus or other settings: {'; '.join(differences)}{remedy}"
        )
    return step


def plain(value: Any) -> Any:
    """The value as JSON would give it back: with strings as keys, and no integers of NumPy.

    >>> plain({"batch_size": {0: np.int64(32)}})
    {'batch_size': {'0': 32}}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return int(value) if isinstance(value, np.integer) else value


def _batch_sizes(settings: Mapping[str, Any]) -> dict[int, int] | None:
    """The batch sizes of a state; None if they are not understood."""
    sizes = settings.get("batch_size")
    try:
        if isinstance(sizes, Mapping):
            sizes = {int(step): size for step, size in sizes.items()}
        return by_step("batch_size", sizes)  # type: ignore[arg-type]
    except ValueError:
        return None
