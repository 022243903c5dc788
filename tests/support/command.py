"""``lowtide`` as a user calls it, in its own process."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = "from lowtide.cli import main; main()"


def lowtide(
    *words: object, code: str = CODE, before: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run it to its end. ``before`` is code that runs first, in the same process."""
    command = [sys.executable, "-c", f"{before}\n{code}", *map(str, words)]
    return subprocess.run(
        command,
        capture_output=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def refusal(*words: object, status: int = 1, **environment: str) -> str:
    """The one line with which it ends."""
    done = lowtide(*words, **environment)
    assert done.returncode == status, f"{done.returncode}: {done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr
    assert "Aborted" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("lowtide: ")]
    assert len(errors) == 1, done.stderr
    assert done.stderr.endswith(f"{errors[0]}\n"), "nothing follows it"
    return errors[0]
