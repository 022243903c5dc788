"""Tokenizers from untrusted files are tried in another process first: their libraries may crash it.

A ``tokenizer.json`` is a small program. Rust aborts when memory or stack are exhausted, which nothing in this
process could catch; nor could it stop a pattern that never terminates.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress

from lowtide._printable import brief
from lowtide.errors import FormatError, LowtideError, TaskError

SECONDS = 60
"""How long a tokenizer may take to load and to encode a few words."""
MEMORY = 2 * 2**30
"""Bytes that it may use, in addition to 16 times the size of its file."""

_TEXTS = ["", "low tide", "The sea\r\n\t went out: 12:30 \0 é 漢字 😀 <|endoftext|> </s>" * 20]
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from lowtide._prepare.tokenizers import probe; probe.main(sys.argv[1])"
)


def run(path: str) -> None:
    """Raise a ``FormatError`` if loading the tokenizer in ``path`` crashes a process or takes too long."""
    if not sys.executable:  # Python embedded in another program cannot start itself
        return
    command = [sys.executable, "-c", _PROGRAM, path, json.dumps(sys.path)]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FormatError(
            f"{path}: cannot be used as a tokenizer (loading it and encoding a few words takes over "
            f"{SECONDS} s); download it again"
        ) from None
    except OSError as error:
        raise TaskError(
            f"{path}: the process that tries the tokenizer does not start ({error}); check this user's limits"
        ) from error
    if done.returncode:
        end = brief(done.stderr[-200:].decode("utf-8", "replace"))
        raise FormatError(
            f"{path}: cannot be used as a tokenizer (its library ended the process that tried it with status "
            f"{done.returncode}: {end}); download it again"
        )


def main(path: str) -> None:
    """Load and use a tokenizer in this process; errors are ignored, since the caller gets them too."""
    from lowtide._prepare import tokenizers

    with suppress(ImportError, ValueError, OSError):  # systems without such limits
        import resource

        with open("/proc/self/statm") as file:
            present = int(file.read().split()[0]) * resource.getpagesize()
        limit = present + MEMORY + 16 * os.path.getsize(path)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with suppress(LowtideError):
        tokenizer = tokenizers.load(path, trusted=True)
        for text in _TEXTS:  # one by one: a tokenizer that cannot encode one of them may still be useful
            with suppress(LowtideError):
                tokenizer.decode(tokenizer.encode_batch([text])[0])
        tokenizer.to_json()
