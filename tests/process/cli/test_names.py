"""Names that a stranger chose: shown, and never obeyed by a terminal, by rich or by a browser."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from lowtide._memory.profile import live, profiler, verdict
from lowtide._prepare.tokenizers.char import CharTokenizer
from lowtide._printable import printable
from tests.process.cli.test_sample import make_run
from tests.support.command import CODE, lowtide
from tests.support.models import model

NAMES = {
    "a\x1b[31mred\x1b[0m": r"a\x1b[31mred\x1b[0m",
    "a\nb": r"a\nb",
    "[bold]x[red]": "[bold]x[red]",
    "<script>alert(1)<\x01script>": r"<script>alert(1)<\x01script>",
    "a\u202eyp.n": r"a\u202eyp.n",
    "a\x9b31mb": r"a\x9b31mb",
    "a\udcff": r"a\udcff",
}
"""What a name may hold, and how it is shown."""
STREAMS = {"utf-8": {}, "ascii": {"PYTHONIOENCODING": "ascii"}, "C": {"LC_ALL": "C", "PYTHONUTF8": "0"}}


def shown(done: subprocess.CompletedProcess[str]) -> str:
    """All that was printed: nothing in it may command a terminal."""
    text = done.stdout + done.stderr
    assert "Traceback" not in text
    assert all(one.isprintable() or one == "\n" for one in text), repr(text)
    return text


@pytest.mark.parametrize("stream", STREAMS)
def test_file_names_are_shown_escaped(stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for raw in NAMES:
        np.save(f"{raw}.npy", np.arange(6).reshape(3, 2))
    done = lowtide("info", *(f"{raw}{end}" for raw in NAMES for end in (".npy", ".gone")), **STREAMS[stream])
    assert done.returncode == 1
    shown(done)
    assert done.stdout.count("\n") == 3 * len(NAMES)
    assert done.stderr.count("\n") == len(NAMES)
    for raw, escaped in NAMES.items():
        if stream == "C":  # where a name has no characters beyond ASCII, but bytes
            escaped = printable(os.fsencode(raw).decode("ascii", "surrogateescape"))
        assert f"{escaped}.npy: npy, " in done.stdout
        assert f"{escaped}.gone: no " in done.stderr


def test_every_command_shows_file_names_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    raw, escaped = "".join(NAMES), "".join(NAMES.values())
    np.save(f"{raw}.npy", np.arange(6).reshape(3, 2))
    Path(f"{raw}.txt").write_text("tide")
    Path(f"{raw}.jsonl").write_text('{"\\u001b[31m": 1}\n')
    Path(f"{raw}.dat").write_text("CMDLINE python x.py\nMEM 1 1\nMEM 1 2\n")
    for words, status, output in (
        (["shuffle", f"{raw}.npy", f"{raw}.out.npy"], 0, f"3 rows of {escaped}.npy"),
        (["compare", f"{raw}.npy", "--out", "", "--json", f"{raw}.json"], 0, f"figures: {escaped}.json\n"),
        (["prepare", f"{raw}.jsonl", "-o", "out"], 1, f"{escaped}.jsonl"),
        (["prepare", f"{raw}.txt", "-o", raw], 0, f"{escaped}: "),
        (["report", f"{raw}.dat"], 0, f"report: {escaped}.html\n"),
        (["doctor", f"{raw}.gone"], 1, escaped),
        (["train", "--data", raw, "--out", "run", "--config", raw], 2, escaped.removesuffix(r"\udcff")),
        (["sample", raw], 1, escaped),
        (["profile", "--", raw], 127, escaped),
        ([raw], 2, escaped),
        (["info", f"--{raw}"], 2, ""),
    ):
        done = lowtide(*words)
        assert done.returncode == status, f"{words[0]}: {done.stderr}"
        assert output in shown(done).replace("\\\\", "\\"), words[0]
    described = json.loads(lowtide("info", "--json", f"{raw}.npy").stdout)
    assert os.path.basename(described["path"]) == f"{raw}.npy", "JSON has the name itself"


def test_names_of_members_are_shown_escaped(tmp_path: Path) -> None:
    names = {raw: escaped for raw, escaped in NAMES.items() if raw != "a\udcff"}  # which UTF-8 cannot have
    arrays = {raw: np.zeros(3) for raw in names}
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    import_module("safetensors.numpy").save_file(arrays, tmp_path / "a.safetensors")
    with import_module("h5py").File(tmp_path / "a.h5", "w") as file:
        for name, array in arrays.items():
            file[name] = array
    for path in tmp_path.iterdir():
        done = lowtide("info", path, COLUMNS="120")
        assert done.returncode == 0, done.stderr
        assert shown(done).count("\n") == 2 + len(names)
        for escaped in names.values():
            assert f"\n{escaped} " in done.stdout
        assert f"holds {len(names)} arrays" in shown(lowtide("shuffle", path, tmp_path / "out"))


def test_sampled_control_characters_are_escaped_in_terminal(tmp_path: Path) -> None:
    alphabet = "\x1b\x9b[a\n"
    run = make_run(tmp_path / "run", model(vocab_size=len(alphabet)), CharTokenizer(alphabet))
    words = ["sample", str(run), "--prompt", "\x1b[a", "--max-new-tokens", "40"]
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", CODE, *words], stdout=theirs, stderr=theirs) as ended:
        os.close(theirs)
        text = b""
        while True:
            try:
                text += os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
    os.close(ours)
    assert ended.returncode == 0
    before, text = text.split(b", step 0\r\n", 1)
    assert before.count(b"\x1b") == 1, "lowtide's own, which removes the line that it showed while loading"
    assert text.startswith(rb"\x1b[a")
    assert b"\x1b" not in text
    assert "\x9b" not in text.decode()
    assert lowtide(*words).stdout.startswith("\x1b[a"), "a file gets the text itself"


def test_verdict_and_live_picture_show_names_escaped() -> None:
    raw, escaped = next(iter(NAMES.items()))
    result = verdict.Verdict("grows", 0, 2**30, 2**30, "mapped", (f"/data/{raw}",), 1.0)
    assert result.line.endswith(f"mapped: {escaped}")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", raw, "[bold]"]) as child:
        try:
            watched = profiler.attach(child.pid)
            watched.look()
        finally:
            child.kill()
    watched.recording.command = ["python", raw, "[bold]"]
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(live.picture(watched, 100))
    assert f"python {escaped} [bold]" in capture.get()
