"""Writers of corpora that are killed, forked, or run out of disk."""

from __future__ import annotations

import signal
from pathlib import Path

import lowtide
from tests.support.process import in_child, python


def test_killed_writer_leaves_nothing_under_the_final_name(tmp_path: Path) -> None:
    code = """
        import os, signal, sys, lowtide
        out = lowtide.create_corpus(sys.argv[1], shard_tokens=100)
        for n in range(100):
            out.append(range(50))
        out._splits["train"]._flush()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert python(code, tmp_path / "corpus").returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == [".corpus.partial"]
    assert len(list((tmp_path / ".corpus.partial").iterdir())) == 100
    with lowtide.create_corpus(tmp_path / "corpus") as out:
        out.append([7])
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]
    assert lowtide.corpus(tmp_path / "corpus")[:].tolist() == [7]


def test_writer_open_at_exit_is_reported(tmp_path: Path) -> None:
    code = "import sys, lowtide; out = lowtide.create_corpus(sys.argv[1]); out.append([1])"
    ended = python(code, tmp_path / "corpus")
    assert "1 documents were not published" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_forked_child_cannot_append(tmp_path: Path) -> None:
    out = lowtide.create_corpus(tmp_path / "corpus")
    out.append([1])

    def child() -> bool:
        try:
            out.append([2])
        except lowtide.LowtideError as error:
            out.abort()
            out._folder.gen.close()
            return "forked" in str(error)
        return False

    assert in_child(child)
    out.append([3])
    out.close()
    assert lowtide.corpus(tmp_path / "corpus")[:].tolist() == [1, 3]


def test_full_disk_publishes_nothing(tmp_path: Path) -> None:
    code = """
        import resource, signal, sys, lowtide
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
        try:
            with lowtide.create_corpus(sys.argv[1]) as out:
                while True:
                    out.append(range(60_000))
        except lowtide.LowtideError as error:
            print(type(error).__name__)
    """
    ended = python(code, tmp_path / "corpus")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("Error\n")
    assert list(tmp_path.iterdir()) == []
