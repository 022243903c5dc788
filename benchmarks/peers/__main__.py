"""``python -m benchmarks.peers``: lowtide beside its peers.

No bars here: the table is what it is. See docs/benchmarks.md for how to read it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from benchmarks.corpora import say
from benchmarks.harness import machine
from benchmarks.limits import read_ahead
from benchmarks.peers import rows, table, tokens
from benchmarks.peers.measure import LIMIT, Comparison
from benchmarks.peers.work import Peer, write_matrix, write_tokens
from benchmarks.peers.worker import PEERS
from lowtide._sizes import format_size, parse_size

OWN_PYTHON = Path(__file__).parents[2] / ".venv-mosaicml" / "bin" / "python"
"""``make bench`` makes this one: MosaicML Streaming asks for older versions of NumPy and transformers."""


def chosen(patterns: Sequence[str]) -> list[Peer]:
    """The peers whose names fit one of the patterns, or all."""
    everyone = list(PEERS.values())
    for pattern in patterns:
        if not any(fnmatchcase(peer.name, pattern) for peer in everyone):
            known = ", ".join(peer.name for peer in everyone)
            raise SystemExit(f"--only {pattern}: no such peer (there are {known}; * and ? are allowed)")
    return [
        peer
        for peer in everyone
        if not patterns or any(fnmatchcase(peer.name, pattern) for pattern in patterns)
    ]


def _pythons(given: Sequence[str]) -> dict[str, str]:
    hits = {"tokens/mosaicml": str(OWN_PYTHON)} if OWN_PYTHON.exists() else {}
    for one in given:
        name, _, path = one.partition("=")
        if name not in PEERS or not os.access(path, os.X_OK):
            raise SystemExit(
                f"--python {one}: expected the name of a peer (see --list) and a Python, such as "
                "tokens/mosaicml=/venv/bin/python"
            )
        hits[name] = path
    return hits


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Run the comparison; what ``--json`` writes."""
    size, peers, pythons = parse_size(options.size), chosen(options.only), _pythons(options.python)
    results = []
    load = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="lowtide-peers-", dir=options.folder) as folder:
        ahead = read_ahead(folder)
        about = {**machine(folder), "read_ahead": "unknown" if ahead is None else format_size(ahead)}
        for work, name, write in (
            ("tokens", tokens.TRAIN, write_tokens),
            ("rows", rows.MATRIX, write_matrix),
        ):
            own = [peer for peer in peers if peer.work == work]
            if own:
                say(f"writing {format_size(size)} for {work}")
                write(os.path.join(folder, name), size)
                results += Comparison(own, folder, pythons, options.rounds).run()
            load.append(os.getloadavg()[0])
    setting = {"size": size, "limit": LIMIT, "rounds": options.rounds, "load": load}
    return {"machine": about, "setting": setting, "peers": [asdict(result) for result in results]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument(
        "--read", metavar="FILE", help="measure nothing: take the figures of an earlier --json"
    )
    parser.add_argument("--markdown", metavar="FILE", help="write the tables to this page, between its marks")
    parser.add_argument("--plots", metavar="DIR", help="draw pictures into this folder")
    parser.add_argument("--size", default="1GiB", help="of each of the two files (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="medians of so many (default: %(default)s)")
    parser.add_argument("--folder", help="where big files are made (default: the temporary folder)")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="these peers, as 'rows/*' or */lowtide"
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="the Python that a peer is installed in",
    )
    parser.add_argument("--list", action="store_true", help="list the peers and how they are used, and end")
    options = parser.parse_args(arguments)
    if options.list:
        for peer in chosen(options.only):
            print(f"{peer.name:<26}{peer.title}: {peer.how}")
        return
    message = json.loads(Path(options.read).read_text()) if options.read else compare(options)
    print(table.text(message))
    if options.json:
        Path(options.json).write_text(json.dumps(message, indent=1))
    if options.markdown:
        table.put(message, options.markdown)
    if options.plots:
        from benchmarks.peers import plots

        plots.draw(message, options.plots)


if __name__ == "__main__":
    main(sys.argv[1:])
