"""The figures of one machine as a JSON file, small enough to be kept with the pages that show them.

A run may be made in parts: each part is written as soon as it is there, and ``merged`` with those before it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Message = dict[str, Any]


def load(path: str) -> Message:
    message: Message = json.loads(Path(path).read_text())
    return message


def save(message: Mapping[str, Any], path: str) -> None:
    """Four digits of each figure, and one line for each peer: what changes between two runs can be seen."""
    rows = ",\n".join("  " + json.dumps(_rounded(row), ensure_ascii=False) for row in message["peers"])
    head = {key: _rounded(value) for key, value in message.items() if key != "peers"}
    text = (
        json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
        + f',\n "peers": [\n{rows}\n ]\n}}\n'
    )
    # At once or not at all: a run that is stopped here must find its earlier parts.
    Path(f"{path}.new").write_text(text)
    os.replace(f"{path}.new", path)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value


def merged(before: Mapping[str, Any], after: Mapping[str, Any], order: Sequence[str]) -> Message:
    """Two parts of one run: the newer row of each peer, in the order of the tables."""
    for name in ("size", "limit", "rounds"):
        old, new = before["setting"][name], after["setting"][name]
        if old != new:
            raise SystemExit(f"--merge: {name} was {old} in the earlier part (now {new}); measure both alike")
    rows = {row["name"]: row for part in (before, after) for row in part["peers"]}
    setting = {**after["setting"], "load": [*before["setting"]["load"], *after["setting"]["load"]]}
    peers = sorted(rows.values(), key=lambda row: order.index(row["name"]))
    return {"machine": after["machine"], "setting": setting, "peers": peers}
