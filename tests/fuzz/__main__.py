"""``python -m tests.fuzz [NAME …] [--cases N]``: many damaged files, or one by its number."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from pathlib import Path

from lowtide.errors import LowtideError
from tests.fuzz.harness import damage, run, run_inside
from tests.fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *TARGETS], help="kinds of files [default: all]")
    parser.add_argument("--cases", type=int, default=1000, help="cases per kind [default: 1000]")
    parser.add_argument("--case", type=int, help="write this one case's files to a folder and read them")
    parser.add_argument("--first", type=int, default=0, help="first case [default: 0]")
    parser.add_argument("--last", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--isolated", action="store_true", help="with --case: in the protected way of users")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    targets = [TARGETS[name] for name in chosen.names or TARGETS]
    if chosen.inside:
        run_inside(targets[0], chosen.first, chosen.last)
        return 0
    if chosen.case is not None:
        folder = Path(tempfile.mkdtemp(prefix="lowtide-fuzz-"))
        (folder / "valid").mkdir()
        targets[0].make(folder / "valid")
        print(f"damaged: {damage(targets[0], folder / 'valid', folder / 'case', chosen.case)}", flush=True)
        if not chosen.isolated:
            targets[0].read(folder / "case")
            return 0
        with contextlib.suppress(LowtideError):
            (targets[0].isolated or targets[0].read)(folder / "case")
        shutil.rmtree(folder)
        return 0
    failed = 0
    for target in targets:
        start = time.monotonic()
        findings = run(target, chosen.cases, chosen.first)
        took = time.monotonic() - start
        count = max(1, int(chosen.cases * target.share))
        print(f"{target.name:20} {count:>9,} cases {took:8.1f} s  findings {len(findings)}", flush=True)
        for finding in findings[:20]:
            print(f"  {finding}", flush=True)
        failed += len(findings)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
