"""Separate Python processes, for what must not happen to the process of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable


def python(code: str, *arguments: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a new interpreter to its end."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def output(code: str, *arguments: object, timeout: float = 120) -> str:
    """What ``code`` prints; it must end well and say nothing on standard error."""
    done = python(code, *arguments, timeout=timeout)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stderr}"
    assert not done.stderr, done.stderr
    return done.stdout


def in_child(check: Callable[[], object]) -> bool:
    """Whether ``check`` returns something true in a forked child."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            status = 0 if check() else 1
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0
