"""Settings that every test shares."""

import os
import signal

from hypothesis import settings

# No deadline: a shared machine may stall any example. In CI the same examples each time, so that a change
# which breaks something can be distinguished from an unlucky run.
settings.register_profile(
    "lowtide",
    max_examples=int(os.environ.get("EXAMPLES", "25")),
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("lowtide")

# Tests run side by side: PyTorch's threads would spin while they wait, and compete for the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts what runs in the background deaf to Ctrl-C, and so are its children, which tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
