"""The learning rate of each step."""

from __future__ import annotations

import math

from lowtide._gpt.settings import Settings


def learning_rate(settings: Settings, step: int) -> float:
    """The rate of the step after ``step`` of them, a pure function.

    Both schedules rise in a line for ``warmup_iters``. ``cosine`` then falls as half a cosine; ``wsd`` stays
    at the top and falls in a line over the last ``cooldown_iters``. At ``lr_decay_iters`` both have reached
    ``min_lr``, and stay there.
    """
    top, bottom = settings.learning_rate, settings.min_lr
    if step < settings.warmup_iters:
        return top * (step + 1) / (settings.warmup_iters + 1)
    if step >= settings.lr_decay_iters:
        return bottom
    if settings.schedule == "cosine":
        gone = (step - settings.warmup_iters) / (settings.lr_decay_iters - settings.warmup_iters)
        return bottom + 0.5 * (1 + math.cos(math.pi * gone)) * (top - bottom)
    left = settings.lr_decay_iters - step
    return bottom + min(1.0, left / max(1, settings.cooldown_iters)) * (top - bottom)
