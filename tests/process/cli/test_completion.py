"""`lowtide completion`: TAB in a real shell."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide.cli import COMMANDS

PROMPT = "ready> "


class Terminal:
    """A shell on its own terminal, to type into."""

    def __init__(self, command: list[str], folder: Path, path: Path) -> None:
        self._keyboard, its_end = pty.openpty()
        environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "PS1": PROMPT, "TERM": "dumb"}
        environment["HOME"] = str(folder)
        self._process = subprocess.Popen(
            command, stdin=its_end, stdout=its_end, stderr=its_end, cwd=folder, env=environment,
            start_new_session=True,
        )  # fmt: skip
        os.close(its_end)
        self._seen = ""

    def wait_for(self, text: str) -> str:
        """What is on the screen since the last time, up to ``text``."""
        deadline = time.monotonic() + 60
        while text not in self._seen:
            ready, _, _ = select.select([self._keyboard], [], [], deadline - time.monotonic())
            assert ready, f"{text!r} did not come; on the screen is {self._seen!r}"
            self._seen += os.read(self._keyboard, 4096).decode()
        before, _, self._seen = self._seen.partition(text)
        return before

    def type(self, keys: str) -> None:
        os.write(self._keyboard, keys.encode())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._keyboard)


@pytest.fixture
def bash(tmp_path: Path) -> Iterator[Terminal]:
    """Bash in a folder with a few files, with completion set up as the help says."""
    programs, folder = tmp_path / "bin", tmp_path / "work"
    programs.mkdir()
    folder.mkdir()
    # Asked for completions it is lowtide. Called otherwise it says how: that is what TAB made of the line.
    (programs / "lowtide").write_text(
        f"""#!/bin/sh
        [ "$1" = completion ] || [ -n "$_LOWTIDE_COMPLETE" ] && exec {sys.executable} -m lowtide.cli "$@"
        echo "called: $*;"
        """
    )
    (programs / "lowtide").chmod(0o755)
    (folder / "features.npy").write_bytes(b"")
    (folder / "corpus").mkdir()
    terminal = Terminal(["bash", "--norc", "--noprofile", "-i"], folder, programs)
    terminal.wait_for(PROMPT)
    terminal.type('eval "$(lowtide completion bash)"\n')
    terminal.wait_for(PROMPT)
    yield terminal
    terminal.close()


@pytest.mark.parametrize(
    ("typed", "called"),
    [
        ("lowtide pre\t", "prepare"),
        ("lowtide doc\t--js\t", "doctor --json"),
        ("lowtide info fea\t--dty\tf4", "info features.npy --dtype f4"),
        ("lowtide info --ver\t./fea\t", "info --verify ./features.npy"),
        ("lowtide prepare -o cor\t", "prepare -o corpus/"),
        ("lowtide prepare --layout nan\tx", "prepare --layout nanogpt x"),
        ("lowtide train --data cor\t", "train --data corpus/"),
        ("lowtide train --opti\tmu\t", "train --optimiser muon"),
        ("lowtide profile --out a -- python fea\t", "profile --out a -- python features.npy"),
        ("lowtide --ver\t", "--version"),
    ],
)
def test_tab_completes_in_bash(bash: Terminal, typed: str, called: str) -> None:
    bash.type(typed + "\n")
    bash.wait_for("called: ")
    assert bash.wait_for(";").rstrip() == called


def test_two_tabs_list_every_command(bash: Terminal) -> None:
    bash.type("lowtide \t\t")
    listed = bash.wait_for(PROMPT).split()
    assert set(COMMANDS) <= set(listed)


def completions(shell: str, words: str, current: str, *options: str) -> subprocess.CompletedProcess[str]:
    asked = {"_LOWTIDE_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": current}
    return subprocess.run(
        [sys.executable, *options, "-m", "lowtide.cli"],
        capture_output=True, text=True, check=True, env={**os.environ, **asked},
    )  # fmt: skip


def test_zsh_and_fish_completions_have_descriptions() -> None:
    result = completions("zsh", "lowtide pre", "1").stdout
    assert result.splitlines() == ["plain", "prepare", COMMANDS["prepare"]]
    result = completions("fish", "lowtide pre", "pre").stdout
    assert result.startswith("plain,prepare")
    assert COMMANDS["prepare"] in result


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_matches_shell(shell: str) -> None:
    script = subprocess.run(
        [sys.executable, "-m", "lowtide.cli", "completion", shell], capture_output=True, text=True, check=True
    ).stdout
    assert f"_LOWTIDE_COMPLETE={shell}_complete" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_completing_command_imports_nothing_heavy() -> None:
    """Else every TAB would take as long as NumPy takes."""
    imported = completions("bash", "lowtide ", "1", "-X", "importtime").stderr
    assert "lowtide.cli" in imported
    assert "numpy" not in imported
    assert "lowtide.cli.train" not in imported


@pytest.mark.parametrize("command", COMMANDS)
def test_completing_an_option_imports_nothing_heavy(command: str) -> None:
    done = completions("bash", f"lowtide {command} --he", "2", "-X", "importtime")
    assert done.stdout == "plain,--help\n"
    assert not {"torch", "pandas", "matplotlib", "dask", "tokenizers", "rich"} & {
        line.split("|")[-1].strip() for line in done.stderr.splitlines()
    }
