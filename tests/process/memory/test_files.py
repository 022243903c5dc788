"""Files of processes in another mount namespace."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TWICE = """
import os, subprocess, sys
from lowtide._memory.profile.files import Files
from lowtide._memory.tree import Tree

def mount(point):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", point], check=True)

with open("/proc/self/mounts") as mounts:
    others = [line.split()[1] for line in mounts if line.split()[2] == "tmpfs"]
for point in others:  # where other processes write meanwhile
    mount(point)
for _ in range(2):  # a container's /dev/shm often lies over another one
    mount(sys.argv[1])
files = Files(Tree(os.getpid()))
before = files.memory_used()
with open(f"{sys.argv[1]}/x", "wb") as file:
    file.write(bytes(8 << 20))
print(files.memory_used() - before)
"""


def test_file_system_under_another_is_not_counted(tmp_path: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    command = ["unshare", "-m", sys.executable, "-c", TWICE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare failed" in done.stderr or "permission denied" in done.stderr.lower():
        pytest.skip("needs root")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 8 * 2**20
