"""``python -m lowtide.mprof``: the same as ``lowtide mprof``."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from lowtide.cli import cli

    cli(["mprof", *sys.argv[1:]], prog_name="lowtide")
