"""Settings that every test shares."""

import os

from hypothesis import settings

# No deadline: a shared machine may stall any example. In CI the same examples each time, so that a change
# which breaks something is told from a change that was merely unlucky.
settings.register_profile(
    "lowtide",
    max_examples=int(os.environ.get("EXAMPLES", "50")),
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("lowtide")
