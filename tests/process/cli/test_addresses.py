"""The commands take addresses wherever they take paths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from tests.support.buckets import upload
from tests.support.command import lowtide as run
from tests.support.command import refusal
from tests.support.servers import ObjectServer

ROWS = np.random.default_rng(0).integers(0, 2**31, (20_000, 32)).astype("<i4")


@pytest.fixture(scope="module")
def prefix(object_server: ObjectServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("addresses")
    np.save(folder / "x.npy", ROWS)
    for name in ("train", "val"):
        (folder / "corpus").mkdir(exist_ok=True)
        (ROWS % 500).astype("<u2").tofile(folder / "corpus" / f"{name}.bin")
    return upload(object_server, folder, "commands")


def output(server: ObjectServer, *words: object) -> str:
    done = run(*words, **server.environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_info_accepts_addresses(object_server: ObjectServer, prefix: str) -> None:
    array = json.loads(output(object_server, "info", f"{prefix}/x.npy", "--json"))
    assert (array["path"], array["arrays"][0]["shape"]) == (f"{prefix}/x.npy", [20_000, 32])
    text = output(object_server, "info", f"{prefix}/corpus", f"{prefix}/x.npy")
    assert f"{prefix}/corpus: nanogpt corpus" in text
    assert 'order="blocks" takes one per MiB' in text
    assert f"{prefix}/x.npy: npy, 2.4 MiB\n" in text


def test_error_is_one_line_with_the_address(object_server: ObjectServer, prefix: str) -> None:
    environment: Any = object_server.environment()
    line = refusal("info", f"{prefix}/nothing.npy", **environment)
    assert line.startswith(f"lowtide: {prefix}/nothing.npy: no such object")
    line = refusal("info", f"{prefix}/x.npy", **environment | {"AWS_SECRET_ACCESS_KEY": "wrong"})
    assert "check the credentials" in line


def test_compare_accepts_address(object_server: ObjectServer, prefix: str, tmp_path: Path) -> None:
    words = ("--seconds", 1, "--out", "", "--save", tmp_path / "x.json")
    text = output(object_server, "compare", f"{prefix}/x.npy", *words)
    assert "times as fast as obstore.get_ranges" in text
    runs = json.loads((tmp_path / "x.json").read_text())["runs"]
    walked = {(one["method"], one["shuffled"]) for one in runs}
    assert walked == {(method, shuffled) for method in ("obstore", "remote") for shuffled in (False, True)}
    assert {one["figures"]["bytes_read"] for one in runs} == {ROWS.nbytes}


def test_shuffle_writes_to_bucket(object_server: ObjectServer, prefix: str) -> None:
    output(object_server, "shuffle", f"{prefix}/x.npy", f"{prefix}/shuffled.npy", "--seed", 4)
    source, result = (
        lowtide.open(f"{prefix}/{name}.npy", storage_options=object_server.options)
        for name in ("x", "shuffled")
    )
    expected = np.concatenate(list(source.chunks(1000, shuffle=True, seed=4)))
    np.testing.assert_array_equal(result[:], expected)


def test_shuffle_from_bucket_to_file(object_server: ObjectServer, prefix: str, tmp_path: Path) -> None:
    output(object_server, "shuffle", f"{prefix}/x.npy", tmp_path / "out.npy", "--seed", 4)
    array = lowtide.open(f"{prefix}/x.npy", storage_options=object_server.options)
    expected = np.concatenate(list(array.chunks(1000, shuffle=True, seed=4)))
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected)
