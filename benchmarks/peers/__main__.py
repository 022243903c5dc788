"""``python -m benchmarks.peers``: lowtide beside its peers.

No bars here: the table is what it is. See docs/benchmarks.md for how to read it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path

from benchmarks.corpora import say
from benchmarks.harness import machine
from benchmarks.limits import read_ahead
from benchmarks.peers import pages, rows, table, tokens
from benchmarks.peers.measure import LIMIT, UNTESTED, Comparison
from benchmarks.peers.results import Message, load, merged, save
from benchmarks.peers.work import USEFUL, Peer, Work, write_matrix, write_tokens
from benchmarks.peers.worker import PEERS
from lowtide._sizes import format_size, parse_size

OWN_PYTHON = Path(__file__).parents[2] / ".venv-mosaicml" / "bin" / "python"
"""``make bench`` makes this one: MosaicML Streaming asks for older versions of NumPy and transformers."""

TOGETHER = 5
"""Peers that take turns in one part of a run, each part beside the best possible."""


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


FILES: dict[Work, tuple[str, Callable[[str, int], None]]] = {
    "tokens": (tokens.TRAIN, write_tokens),
    "rows": (rows.MATRIX, write_matrix),
}


def compare(options: argparse.Namespace) -> Message:
    """Run the comparison, a few peers at a time; what ``--json`` writes."""
    order = list(PEERS)
    message: Message | None = load(options.json) if options.merge and os.path.exists(options.json) else None
    there = [row["name"] for row in message["peers"]] if message else []
    left = [peer for peer in chosen(options.only) if peer.name not in there]
    started, longest = time.monotonic(), 0.0
    with _folder(options) as folder:
        for work in FILES if "speed" in options.steps else ():
            own = [peer for peer in left if peer.work == work]
            for part in (own[start : start + TOGETHER] for start in range(0, len(own), TOGETHER)):
                pending = time.monotonic()
                if pending - started + longest > options.seconds:
                    break
                result = _part(part, folder, options)
                message = merged(message, result, order) if message else result
                left = [peer for peer in left if peer not in part]
                if options.json:
                    save(message, options.json)
                longest = max(longest, time.monotonic() - pending)
        if message and "checks" in options.steps:
            _check(message, folder, options)
    if left and "speed" in options.steps:
        names = " ".join(peer.name for peer in left)
        say(f"{len(left)} left for the next call with --merge: {names}")
    if message is None:
        raise SystemExit(f"--seconds {options.seconds:g}: too few to measure anything; allow more")
    return message


def _check(message: Message, folder: str, options: argparse.Namespace) -> None:
    """Ask what has no speed of those that have not been asked."""
    names = [peer.name for peer in chosen(options.only)]
    for row in message["peers"]:
        if row["name"] in names and not row["missing"] and row["resume"] == UNTESTED:
            row |= Comparison([PEERS[row["name"]]], folder, _pythons(options.python), 1).checked(row["name"])
            if options.json:
                save(message, options.json)


def _part(peers: Sequence[Peer], folder: str, options: argparse.Namespace) -> Message:
    """The figures of a few peers that take turns, and of the best possible."""
    size, load = parse_size(options.size), os.getloadavg()[0]
    name, write = FILES[peers[0].work]
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        say(f"writing {format_size(size)} for {peers[0].work}")
        new = os.path.join(folder, f"new-{name}")  # its suffix says what it is
        write(new, size)
        os.replace(new, path)
    elif abs(os.path.getsize(path) - size) > USEFUL["rows"]:
        raise SystemExit(
            f"{path}: is {format_size(os.path.getsize(path))} (--size {options.size}); remove it"
        )
    ahead = read_ahead(folder)
    about = {**machine(folder), "read_ahead": "unknown" if ahead is None else format_size(ahead)}
    results = Comparison(peers, folder, _pythons(options.python), options.rounds).run()
    setting = {"size": size, "limit": LIMIT, "rounds": options.rounds, "load": [load]}
    return {"machine": about, "setting": setting, "peers": [asdict(result) for result in results]}


@contextmanager
def _folder(options: argparse.Namespace) -> Iterator[str]:
    """Where the big files are: in a folder that stays (--files), or in one that goes at the end."""
    if options.files:
        os.makedirs(options.files, exist_ok=True)
        yield options.files
        return
    with tempfile.TemporaryDirectory(prefix="lowtide-peers-", dir=options.folder) as folder:
        yield folder


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument(
        "--merge", action="store_true", help="keep what --json FILE has, and measure the peers that it lacks"
    )
    parser.add_argument(
        "--steps",
        nargs="+",
        choices=["speed", "checks"],
        default=["speed", "checks"],
        help="speed needs a quiet machine; checks of resuming and of ranks do not (default: both)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=float("inf"),
        help="start no part that would end later; --merge continues",
    )
    parser.add_argument(
        "--read",
        nargs="+",
        default=[],
        metavar="FILE",
        help="measure nothing: take figures of earlier --json, a file for each machine, the newest last",
    )
    parser.add_argument("--markdown", metavar="FILE", help="write the tables to this page, between its marks")
    parser.add_argument(
        "--readme", metavar="FILE", help="write the short table of the last machine to this page"
    )
    parser.add_argument("--plots", metavar="DIR", help="draw pictures of the last machine into this folder")
    parser.add_argument("--size", default="1GiB", help="of each of the two files (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="medians of so many (default: %(default)s)")
    parser.add_argument("--folder", help="where big files are made (default: the temporary folder)")
    parser.add_argument(
        "--files", metavar="DIR", help="keep the big files here, and use those of an earlier call"
    )
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
    messages = [load(path) for path in options.read] or [compare(options)]
    for message in messages:
        print(table.text(message))
    if options.json and not options.read:
        save(messages[-1], options.json)
    if options.markdown:
        pages.put(pages.markdown(messages), options.markdown)
    if options.readme:
        pages.put(pages.short(pages.newest(messages)), options.readme)
    if options.plots:
        from benchmarks.peers import plots

        plots.draw(pages.newest(messages), options.plots)


if __name__ == "__main__":
    main(sys.argv[1:])
