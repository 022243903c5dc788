"""How many examples a property test tries: all are scaled by the profile, and it by ``EXAMPLES``."""

from __future__ import annotations

from hypothesis import settings

EXAMPLES: int = settings.default.max_examples  # type: ignore[union-attr]


def examples(times: float, deadline: int | None = None) -> settings:
    """``times`` as many examples as the profile has, of at most ``deadline`` milliseconds each."""
    return settings(max_examples=max(1, round(times * EXAMPLES)), deadline=deadline)
