"""Kills and throttling under cgroup version 2, on a kernel that is booted for it.

    apt-get install qemu-system-x86
    apt-get download linux-image-6.1.0-56-cloud-amd64 && dpkg-deb -x linux-image-*.deb kernel
    python -m benchmarks.cgroup2 --kernel kernel/boot/vmlinuz-6.1.0-56-cloud-amd64

Claims: `lowtide profile` names who was killed and at whose limit (that of the container, of a parent, of the
machine; `lowtide watch` that of a group below), the worker and not its parent; tmpfs is named; throttling is
noticed; where all processes of a container are killed at once, `lowtide report` finishes the recording. The
machine is emulated: figures mean little; the lines are compared with what they must say. It takes some
minutes.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import lowtide

_PACKAGES = ("numpy", "numpy.libs", "psutil", "rich", "click", "markdown_it", "mdurl", "pygments")
_LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "tkinter", "ensurepip", "lib2to3", "__pycache__"}
_LEAK = "import time; kept = []\nwhile True: kept.append(b'x' * 2**20); time.sleep(0.02)"
_WORKER = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_LEAK!r}])"
_TMPFS = (
    "import tempfile, time\nwith tempfile.TemporaryFile(dir='/dev/shm') as file:\n"
    "    for _ in range(300): file.write(b'x' * 2**20); file.flush(); time.sleep(0.1)"
)
_HIGH = (
    "import time; kept = []\nfor _ in range(60): kept.append(b'x' * 2**20); time.sleep(0.02)\ntime.sleep(3)"
)
_KILLED = r"the kernel OOM-killed process \d+ \(python.*\) of this container at [\d:]+: "

# What is written to the groups before, the program, and what one line must be.
CASES = {
    "container": ({"pod/c/memory.max": "128M"}, _LEAK, _KILLED + r"heap \d+ of 128 MiB.*"),
    "worker": ({}, _WORKER, _KILLED.replace("python", "python.* -c 'import time; kept") + r"heap \d+ of .*"),
    "tmpfs": ({}, _TMPFS, _KILLED + r"heap \d+, shared memory and tmpfs \d+ of 128 MiB.*"),
    "parent": (
        {"pod/memory.max": "96M"},
        _LEAK,
        _KILLED + r".* of 96 MiB, the limit of /sys/fs/cgroup/pod.*",
    ),
    "throttled": (
        {"pod/memory.max": "256M", "pod/c/memory.high": "60M"},
        _HIGH,
        r"the kernel throttled this container from [\d:]+ for [\d.]+ s: over memory.high of \S+/pod/c \(.*",
    ),
    "below": (
        {"pod/c/memory.high": "max"},
        _LEAK,
        _KILLED + r"heap \d+ of 128 MiB, the limit of /sys/fs/cgroup/pod/c.*",
    ),
    "together": (
        {"pod/c/memory.oom.group": "1"},
        _LEAK,
        r"since the recording started, the kernel OOM-killed processes of its container: \d+",
    ),
    "machine": (
        {"pod/c/memory.oom.group": "0", "pod/c/memory.max": "max", "pod/memory.max": "max"},
        _LEAK,
        _KILLED + ".*no limit of the container was reached, so the machine was out of memory.*",
    ),
}


def main() -> None:
    """Boot, run the cases inside, and compare what they print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernel", required=True, help="a vmlinuz with CONFIG_MEMCG")
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES), help="these cases")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        disk, log = os.path.join(folder, "initrd.gz"), os.path.join(folder, "log")
        _pack(disk)
        command = [
            "qemu-system-x86_64",
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
            "-m",
            "1500",
            "-smp",
            "2",
        ]
        command += ["-display", "none", "-monitor", "none", "-serial", f"file:{log}", "-no-reboot"]
        append = f"console=ttyS0 quiet panic=1 lowtide_cases={','.join(options.only)}"
        command += ["-kernel", options.kernel, "-initrd", disk, "-append", append]
        subprocess.run(command, check=True, timeout=900)
        printed = Path(log).read_text(errors="replace").replace("\r", "")
    parts = dict(re.findall(r"=== (\w+)\n(.*?)(?==== )", printed, re.DOTALL))
    wrong = 0
    for name, (_, _, expected) in ((name, CASES[name]) for name in options.only):
        lines = parts.get(name, "").splitlines()
        line = next((line for line in lines if re.fullmatch(expected, line)), None)
        wrong += line is None
        print(f"{name:<10} {'ok   ' if line else 'WRONG'} {line or lines}")
    sys.exit(min(wrong, 1))


def inside() -> None:
    """The first process of the booted machine."""
    import ctypes

    library = ctypes.CDLL(None)
    groups = "/sys/fs/cgroup"
    mounts = {"/proc": "proc", "/sys": "sysfs", "/dev": "devtmpfs", "/dev/shm": "tmpfs", "/tmp": "tmpfs"}
    for place, kind in {**mounts, groups: "cgroup2"}.items():
        os.makedirs(place, exist_ok=True)
        library.mount(kind.encode(), place.encode(), kind.encode(), 0, None)
    terminal = os.open("/dev/console", os.O_RDWR)
    for number in range(3):
        os.dup2(terminal, number)
    for group in ("", "pod", "pod/c"):
        os.makedirs(f"{groups}/{group}", exist_ok=True)
        if group != "pod/c":
            Path(f"{groups}/{group}/cgroup.subtree_control").write_text("+memory")
    line = Path("/proc/cmdline").read_text().rpartition("lowtide_cases=")[2]
    chosen = line.split()[0].split(",")
    for name, (settings, program, _) in CASES.items():
        print(f"=== {name}", flush=True)
        for file, value in settings.items():  # which stay for those after it
            Path(f"{groups}/{file}").write_text(value)
        if name not in chosen:
            continue
        tool = [sys.executable, "-c", "from lowtide.cli import main; main()"]
        enter = f'echo $$ > {groups}/pod/c/cgroup.procs && exec "$@"'
        profile = [*tool, "profile", "--save", "/tmp/a.json", "--", sys.executable, "-c", program]
        if name == "below":  # the pod is watched from outside, the group in it is killed
            leak = [sys.executable, "-c", f"import time; time.sleep(60)\n{program}"]
            with subprocess.Popen(["/bin/sh", "-c", enter, "sh", *leak]):
                watch = [*tool, "watch", f"{groups}/pod", "--every", "5", "--for", "120"]
                print(subprocess.run(watch, stdout=-1, text=True, check=False).stdout)
            continue
        subprocess.run(["/bin/sh", "-c", enter, "sh", *profile], check=False)
        if name == "together":
            subprocess.run([*tool, "report", "/tmp/a.json"], check=False)
    print("=== end", flush=True)
    library.reboot(0x4321FEDC)  # LINUX_REBOOT_CMD_POWER_OFF


def _pack(path: str) -> None:
    """Write an initramfs with this Python, lowtide and what they need."""
    python = os.path.realpath(sys.executable)
    init = (
        f"#!{python}\nimport os, sys\nsys.path.insert(0, '/packages')\n"
        f"os.environ.update(PYTHONPATH='/packages', LANG='C.UTF-8', PATH='{os.path.dirname(python)}:/bin')\n"
        "from benchmarks.cgroup2 import inside\ninside()\n"
    )
    with gzip.open(path, "wb", compresslevel=1) as disk:
        folders: set[str] = set()
        for target, data, mode in [
            *_files(python),
            ("init", init.encode(), 0o100755),
            ("TRAILER!!!", b"", 0),
        ]:
            for parent in reversed(Path(target).parents):
                if str(parent) not in {".", *folders}:
                    folders.add(str(parent))
                    disk.write(_entry(str(parent), b"", 0o040755))
            disk.write(_entry(target, data, mode))


def _files(python: str) -> Iterator[tuple[str, bytes, int]]:
    here = Path(__file__).parent
    trees = {Path(sysconfig.get_path("stdlib")): sysconfig.get_path("stdlib").strip("/")}
    for name in _PACKAGES:
        trees[Path(sysconfig.get_path("platlib")) / name] = f"packages/{name}"
    trees[Path(str(lowtide.__file__)).parent] = "packages/lowtide"
    sources = {Path(python): python.strip("/"), Path("/bin/sh").resolve(): "bin/sh"}
    sources |= {here / name: f"packages/benchmarks/{name}" for name in ("__init__.py", "cgroup2.py")}
    for tree, target in trees.items():
        for file in tree.rglob("*"):
            place = file.relative_to(tree)
            if file.is_file() and not _LEFT_OUT & {*place.parts} and file.suffix != ".a":
                sources[file] = f"{target}/{place}"
    binaries = [str(file) for file in sources if ".so" in file.name or os.access(file, os.X_OK)]
    needed = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False).stdout
    for library in set(re.findall(r"(?:=> |\t)(/\S+) \(", needed)):
        sources.setdefault(Path(library), library.strip("/"))
    for file, target in sources.items():
        yield target, file.read_bytes(), 0o100755


def _entry(name: str, data: bytes, mode: int) -> bytes:
    """A file in the format ``newc`` of cpio."""
    text = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(text), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + text
    return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)


if __name__ == "__main__":
    main()
