"""Programs whose memory is known, and the verdict that each should get: the truth table of the profiler.

``tests/memory/test_verdicts.py`` runs the quick ones once, ``benchmarks/verdicts.py`` all of them often.
Each program gets the path of a file of 1 GiB of random bytes and a folder for what it writes as arguments.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

MIB, GIB = 2**20, 2**30
HEAD = "import os, sys, time\npath = sys.argv[1]\n"


@dataclass(frozen=True)
class Program:
    """A program and what is true of it."""

    name: str
    body: str  # Python, or the arguments of another interpreter
    states: tuple[str, ...]  # verdicts that are right
    line: str = ""  # regular expression for the line of a right verdict that is not `unclear`
    limit: int | None = None  # bytes of the memory cgroup that it runs in
    quick: bool = False  # in CI
    cold: bool = False  # the file is not in the page cache
    needs: str = ""  # a module or a command
    unclear: bool = True  # whether `unclear` may happen: it is short, or hard for a person too
    before: str = ""  # Python that writes what it reads, once for a folder

    def command(self, path: str, folder: str) -> list[str]:
        """The command that runs it on the file at ``path``, with ``folder`` for what it writes."""
        done = os.path.join(folder, f"{self.name}.done")
        if self.before and not os.path.exists(done):
            subprocess.run(
                [sys.executable, "-c", HEAD + self.before, path, folder], capture_output=True, check=True
            )
            open(done, "w").close()
        if self.needs in ("node", "java"):
            name = os.path.join(folder, "Main.java" if self.needs == "java" else "main.js")
            with open(name, "w") as file:
                file.write(self.body)
            return [self.needs, name, path]
        if self.needs == "sh":
            return ["sh", "-c", self.body, "sh", path]
        if self.needs == "unshare":
            inner = [sys.executable, "-c", HEAD + self.body, f"{folder}/mount/{os.path.basename(path)}"]
            script = 'mkdir -p "$0/mount" && mount --bind "$1" "$0/mount" && shift && exec "$@"'
            return ["unshare", "-m", "sh", "-c", script, folder, os.path.dirname(path), *inner]
        return [sys.executable, "-c", HEAD + self.body, path, folder]

    def available(self) -> bool:
        """Whether what it needs is installed."""
        if self.needs in ("", "sh"):
            return True
        if self.needs in ("node", "java", "unshare"):
            return shutil.which(self.needs) is not None
        import importlib.util

        return importlib.util.find_spec(self.needs) is not None

    def judged(self, line: str) -> str:
        """Whether a verdict is ``right``, ``unclear`` or ``wrong``."""
        state = line.split(":")[0].split(" ")[0]
        if state == "unclear":
            return "right" if "unclear" in self.states else "unclear"
        return "right" if state in self.states and re.search(self.line, line) else "wrong"


def memmap(walk: str, imports: str = "") -> str:
    return f"import numpy as np{imports}\na = np.memmap(path, dtype='u1', mode='r')\n{walk}"


def reads(body: str, epochs: int = 1, after: str = "") -> str:
    """A loop over blocks of 4 MiB, ``b``, that are numbered by ``i``."""
    return (
        f"kept, i = [], 0\nfor epoch in range({epochs}):\n    with open(path, 'rb', buffering=0) as file:\n"
        f"        while b := file.read(4 << 20):\n            i += 1\n            {body}\n{after}"
    )


WORKERS = """
import multiprocessing, numpy as np
def work(path, k):
    a = np.memmap(path, dtype='u1', mode='r'); q = len(a) // 4
    for i in range(k * q, (k + 1) * q, 1 << 22): int(a[i : i + (1 << 22)].sum())
"""
# Spawned workers import the module of their function: it must be in a file.
SPAWNED = """
import textwrap
with open(os.path.join(sys.argv[2], 'walker.py'), 'w') as file: file.write(textwrap.dedent('''{module}'''))
sys.path.insert(0, sys.argv[2]); os.environ['PYTHONPATH'] = sys.argv[2]
import walker, multiprocessing
context = multiprocessing.get_context('spawn')
workers = [context.Process(target=walker.work, args=(path, k)) for k in range(4)]
[worker.start() for worker in workers]; [worker.join() for worker in workers]
"""
FORKED = """
workers = []
for k in range({count}):
    if not (pid := os.fork()):
        {work}
        os._exit(0)
    workers.append(pid)
[os.waitpid(pid, 0) for pid in workers]
"""
STRINGS = "strings = ['%032d' % i for i in range({count})]\n"
TOUCH = (
    "for i in range(0, len(strings), 20000): sum(len(x) for x in strings[i : i + 20000]); time.sleep({pause})"
)
LOADER = """
import torch
from torch.utils.data import DataLoader, Dataset
class Items(Dataset):
    {init}
    def __len__(self): return {length}
    def __getitem__(self, i): {item}
loader = DataLoader(Items(), batch_size={batch}, num_workers={workers}, shuffle={shuffle})
for batch in loader: time.sleep({pause})
"""
HALVES = """
half = len(a) // 2; pid = os.fork(); first, last = (0, half) if pid else (half, len(a))
for i in range(first, last, 1 << 22): int(a[i : i + (1 << 22)].sum()); time.sleep({pause})
if pid: os.wait()
"""
WALK = "for i in range(0, len(a), 1 << 22): int(a[i : i + (1 << 22)].sum())\n"
SHM = """
from multiprocessing import shared_memory
blocks = []
for i in range(100):
    block = shared_memory.SharedMemory(create=True, size=4 << 20); block.buf[:] = b'x' * (4 << 20)
    blocks.append(block); time.sleep(0.02)
for block in blocks: block.close(); block.unlink()
"""
TMPFS = """
name = '/dev/shm/lowtide-truth-%d' % os.getpid()
with open(name, 'wb', buffering=0) as file:
    os.unlink(name)
    for i in range(100): file.write(b'x' * (4 << 20)); time.sleep(0.02)
"""
TMPFS_FILES = """
names = ['/dev/shm/lowtide-truth-%d-%d' % (os.getpid(), i) for i in range(100)]
for name in names:
    with open(name, 'wb', buffering=0) as file: file.write(b'x' * (4 << 20))
    time.sleep(0.02)
for name in names: os.unlink(name)
"""
CSV = """
import pandas, numpy
name = os.path.join(sys.argv[2], 'table.csv')
block = numpy.random.default_rng(0).random((200_000, 4))
block = pandas.DataFrame(block, columns=list('abcd')).to_csv(index=False)
head, _, rows = block.partition('\\n')
with open(name, 'w') as file:
    file.write(head + '\\n')
    for _ in range(10): file.write(rows)
del block, rows
"""
ARROW = """
import datasets, pyarrow as pa
with open(path, 'rb') as file: data = pa.py_buffer(file.read(512 << 20))
rows = pa.FixedSizeListArray.from_arrays(pa.Array.from_buffers(pa.uint8(), 512 << 20, [None, data]), 1 << 16)
datasets.Dataset(pa.table({'x': rows})).save_to_disk(os.path.join(sys.argv[2], 'arrow'))
"""
ARROW_READ = """
import datasets
rows = datasets.load_from_disk(os.path.join(sys.argv[2], 'arrow')).with_format('numpy')
for i in range(0, len(rows), 64): rows[i : i + 64]['x'].sum()
"""
SOCKETS = """
import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
pairs = []
for i in range(1500):
    a, b = socket.socketpair(); a.setblocking(False); pairs.append((a, b))
    try:
        while True: a.send(b'x' * 65536)
    except BlockingIOError: pass
    time.sleep(0.002)
"""
CHILDREN = """
import subprocess
kept = []
code = "import sys; f = open(sys.argv[1], 'rb', buffering=0); f.seek(int(sys.argv[2]))"
code += "; b = f.read(16 << 20){more}"
for i in range(50):
    done = subprocess.run([sys.executable, '-S', '-c', code, path, str(i << 24)], stdout=subprocess.PIPE)
    {keep}
"""
NODE = (
    "const fs = require('fs'), kept = [], fd = fs.openSync(process.argv[2]);\n"
    "for (let i = 0; i < 256; i++) { const b = Buffer.alloc(4 << 20); fs.readSync(fd, b, 0, 4 << 20, null);\n"
    "  if (i % 2 == 0) kept.push(b); }"
)
JAVA = """
import java.util.*; import java.io.*;
public class Main { public static void main(String[] a) throws Exception {
  List<byte[]> kept = new ArrayList<>();
  for (int e = 0; e < %d; e++) { FileInputStream f = new FileInputStream(a[0]);
    for (int i = 0; i < 256; i++) { byte[] b = new byte[4 << 20]; f.read(b); %s; Thread.sleep(4); }
    f.close(); }
  System.err.println(kept.size()); } }
"""
CACHE_ROUNDS = (
    "buffer = bytearray(4 << 20)\nfor epoch in range(3):\n    with open(path, 'rb', buffering=0) as file:\n"
    "        while file.readinto(buffer): time.sleep(0.002)\n"
)
DELETED = """
import numpy as np
name = os.path.join(sys.argv[2], 'deleted.bin')
with open(path, 'rb') as source, open(name, 'wb') as file:
    for _ in range(96): file.write(source.read(4 << 20))
a = np.memmap(name, dtype='u1', mode='r'); os.unlink(name)
"""
LATE = reads("(kept.append(b) if i > 154 else None); time.sleep({pause})")
SAW = "kept.append(b); (kept.clear() if len(kept) >= 40 else None); time.sleep(0.002)"

GROWS, BOUNDED, EITHER = ("grows",), ("bounded",), ("grows", "bounded")
MAPPED = r"mapped: data\.bin"
PROGRAMS = [
    Program(
        "memmap walked once",
        memmap(WALK),
        GROWS,
        rf"1\.0 GiB per GiB read, {MAPPED}",
        quick=True,
        unclear=False,
    ),
    Program("memmap walked twice", memmap(f"for epoch in range(2):\n    {WALK}"), GROWS, MAPPED),
    Program(
        "memmap, 8 epochs over a quarter",
        memmap(f"a = a[: len(a) // 4]\nfor epoch in range(8):\n    {WALK}"),
        BOUNDED,
        "loads 2[5-9].|flat since 2[5-9].",
        quick=True,
    ),
    Program(
        "memmap made again for each block",
        "import numpy as np\nfor i in range(0, os.path.getsize(path), 1 << 22):\n"
        "    a = np.memmap(path, dtype='u1', mode='r'); int(a[i : i + (1 << 22)].sum()); del a\n",
        BOUNDED,
    ),
    Program(
        "memmap, 4 forked workers",
        WORKERS + FORKED.format(count=4, work="work(path, k)"),
        GROWS,
        MAPPED,
        quick=True,
    ),
    Program("memmap, 4 spawned workers", SPAWNED.format(module=WORKERS), GROWS, MAPPED, quick=True),
    Program(
        "memmap, 4 spawned workers, slow",
        SPAWNED.format(module=WORKERS.replace(".sum())", ".sum()); import time; time.sleep(0.1)")),
        GROWS,
        MAPPED,
    ),
    Program(
        "memmap in a DataLoader, 4 workers",
        LOADER.format(
            init="def __init__(self): import numpy; self.a = numpy.memmap(path, dtype='u1', mode='r')",
            length=16384,
            item="return torch.from_numpy(self.a[i << 16 : (i + 1) << 16].copy())",
            batch=16,
            workers=4,
            shuffle=True,
            pause=0.01,
        ),
        EITHER,
        MAPPED + r"|loads 1\d{3}|flat since 1\d{3}",
        needs="torch",
    ),
    Program(
        "heap, 1 MiB per 100 MiB read",
        reads("(kept.append(bytearray(b'x') * (1 << 20)) if i % 25 == 0 else None); time.sleep(0.001)", 4),
        GROWS,
        "heap",
    ),
    Program(
        "the same, 1 GiB read",
        reads("(kept.append(bytearray(b'x') * (1 << 20)) if i % 25 == 0 else None); time.sleep(0.001)"),
        GROWS,
        "heap",
    ),
    Program(
        "heap, half of what is read",
        reads("kept.append(b[: 2 << 20])"),
        GROWS,
        "heap",
        quick=True,
        unclear=False,
    ),
    Program(
        "cache of 300 MiB, 3 GiB read",
        reads("kept.append(b); (kept.pop(0) if len(kept) > 75 else None)", 3),
        BOUNDED,
        "loads|flat since",
        quick=True,
    ),
    Program(
        "cache of 700 MiB, 1 GiB read",
        reads("kept.append(b); (kept.pop(0) if len(kept) > 175 else None); time.sleep(0.004)"),
        BOUNDED,
        "flat since [67]",
    ),
    Program("saw of 160 MiB", reads(SAW, 2), BOUNDED, quick=True),
    Program(
        "saw with a rising floor",
        "floor = []\n"
        + reads(SAW + "; (floor.append(bytearray(b'x') * (2 << 20)) if i % 5 == 0 else None)", 2),
        GROWS,
        "heap",
    ),
    Program(
        "1 MiB per 20 ms, no reads",
        "kept = []\nend = time.time() + 4\n"
        "while time.time() < end: kept.append(bytearray(b'x') * (1 << 20)); time.sleep(0.02)\n",
        GROWS,
        "per second, heap",
        quick=True,
        unclear=False,
    ),
    Program(
        "4 MiB per second, no reads",
        "kept = []\nend = time.time() + 6\n"
        "while time.time() < end: kept.append(bytearray(b'x') * (1 << 18)); time.sleep(0.0625)\n",
        GROWS,
        "per second, heap",
    ),
    Program(
        "list.append",
        "kept, i, end = [], 0, time.time() + 3\nwhile time.time() < end and i < 12_000_000:\n"
        "    kept.append(i * 1.5); i += 1\n    if i % 200000 == 0: time.sleep(0.03)\n",
        GROWS,
        "heap",
    ),
    Program(
        "copy-on-write, 2 forked workers",
        STRINGS.format(count=1_000_000) + FORKED.format(count=2, work=TOUCH.format(pause=0.06)),
        GROWS,
        "heap",
        quick=True,
    ),
    Program(
        "copy-on-write, slow",
        STRINGS.format(count=2_000_000) + FORKED.format(count=2, work=TOUCH.format(pause=0.12)),
        GROWS,
        "heap",
    ),
    Program(
        "copy-on-write in a DataLoader",
        LOADER.format(
            init="def __init__(self): self.l = ['%032d' % i for i in range(3_000_000)]",
            length=375_000,
            item="return sum(len(x) for x in self.l[i * 8 : i * 8 + 8])",
            batch=256,
            workers=2,
            shuffle=False,
            pause=0.006,
        ),
        GROWS,
        "heap",
        needs="torch",
    ),
    Program(
        "forked workers that only compute",
        STRINGS.format(count=500_000)
        + "import gc; gc.freeze()\n"
        + FORKED.format(
            count=2, work="end = time.time() + 3\n        while time.time() < end: sum(range(1000))"
        ),
        BOUNDED,
    ),
    Program(
        "pandas.read_csv in chunks",
        CSV + "for chunk in pandas.read_csv(name, chunksize=100_000): chunk['a'].sum()\n",
        BOUNDED,
        needs="pandas",
    ),
    Program(
        "pandas, chunks kept",
        CSV + "kept = [c for c in pandas.read_csv(name, chunksize=50_000)]\npandas.concat(kept)\n",
        GROWS,
        "heap",
        needs="pandas",
    ),
    Program(
        "Hugging Face data set, Arrow",
        ARROW_READ,
        GROWS,
        r"mapped: data-.*\.arrow",
        needs="datasets",
        before=ARROW,
    ),
    Program("plain reads", reads("time.sleep(0.001)"), BOUNDED, quick=True, unclear=False),
    Program(
        "plain reads, 3 epochs, inside 1500 MiB",
        CACHE_ROUNDS,
        GROWS,
        "page cache",
        limit=1500 * MIB,
        cold=True,
        quick=True,
    ),
    Program(
        "plain reads, 1 epoch, inside 600 MiB",
        reads("time.sleep(0.002)"),
        BOUNDED,
        limit=600 * MIB,
        cold=True,
    ),
    Program("shared memory, 400 MiB", SHM, GROWS, r"per second, shared memory / tmpfs: psm_", quick=True),
    Program("file in /dev/shm, 400 MiB", TMPFS, GROWS, "per second, shared memory / tmpfs", quick=True),
    Program("files in /dev/shm, each closed", TMPFS_FILES, GROWS, "per second, shared memory / tmpfs"),
    Program("file in /dev/shm inside 600 MiB", TMPFS, GROWS, "shared memory / tmpfs", limit=600 * MIB),
    Program(
        "580 MiB freed and kept by malloc",
        "l = [bytes(4000) for _ in range(150_000)]\nlast = l[-1]; del l\n" + reads("time.sleep(0.002)", 2),
        BOUNDED,
    ),
    Program(
        "fragmentation",
        reads("parts = [b[k << 12 : (k << 12) + 4036] for k in range(1024)]; kept += parts[::32]; del parts"),
        GROWS,
        "heap",
    ),
    Program("50 short children", CHILDREN.format(more="", keep="pass"), BOUNDED),
    Program(
        "short children whose output is kept",
        CHILDREN.format(more="; sys.stdout.buffer.write(b[:4 << 20])", keep="kept.append(done.stdout)"),
        GROWS,
        "heap",
    ),
    Program("pipeline", 'cat "$1" | tr a b | head -c 500000000 | wc -c', BOUNDED, needs="sh"),
    Program("20 ms", "pass", ("unclear",)),
    Program("300 MiB at once", "b = bytearray(b'x') * (300 << 20)", ("bounded", "unclear")),
    Program(
        "file written, 1 GiB",
        "b = os.urandom(4 << 20)\nwith open(os.path.join(sys.argv[2], 'out'), 'wb', buffering=0) as f:\n"
        "    for i in range(256): f.write(b)\nos.unlink(os.path.join(sys.argv[2], 'out'))\n",
        BOUNDED,
    ),
    Program(
        "memmap written",
        "import numpy as np\n"
        "a = np.memmap(os.path.join(sys.argv[2], 'out.bin'), dtype='u1', mode='w+', shape=(512 << 20,))\n"
        "for i in range(0, len(a), 1 << 22): a[i : i + (1 << 22)] = 7; time.sleep(0.005)\n",
        GROWS,
        r"written, not yet on disk: out\.bin",
        quick=True,
    ),
    Program(
        "lowtide, chunks in order",
        "import lowtide\na = lowtide.open(path, dtype='u1')\n"
        "for c in a.chunks(budget='16 MiB'): int(c[::64].sum())\n",
        BOUNDED,
    ),
    Program(
        "lowtide, shuffled",
        "import lowtide\n"
        "a = lowtide.open(path, dtype='u1', shape=(1 << 18, 4096))\n"
        "for c in a.chunks(budget='16 MiB', shuffle=True, seed=0): int(c[0, 0])\n",
        BOUNDED,
    ),
    Program("node, leak", NODE, GROWS, "heap", needs="node"),
    Program("java, leak", JAVA % (1, "if (i % 4 == 0) kept.add(b)"), GROWS, "heap", needs="java"),
    Program("java, no leak", JAVA % (3, ""), BOUNDED, needs="java"),
    Program("sockets inside 1500 MiB", SOCKETS, GROWS, "kernel memory", limit=1500 * MIB, quick=True),
    Program(
        "unlinked file, 2 processes", DELETED + HALVES.format(pause=0.03), GROWS, r"mapped: deleted\.bin"
    ),
    Program(
        "other mount namespace, 2 processes",
        memmap(HALVES.format(pause=0.01)),
        GROWS,
        MAPPED,
        needs="unshare",
    ),
    Program(
        "leak after 60 % of the reads",
        LATE.format(pause=0.008),
        GROWS,
        "grows since .*heap",
        quick=True,
        unclear=False,
    ),
    Program(
        "60 MiB more each epoch",
        "kept = []\nfor epoch in range(8):\n    kept.append(bytearray(b'x') * (60 << 20))\n"
        "    with open(path, 'rb', buffering=0) as f:\n"
        "        for i in range(32): f.read(4 << 20); time.sleep(0.01)\n",
        GROWS,
        "heap",
    ),
    Program(
        "loads 400 MiB, then computes",
        "f = open(path, 'rb', buffering=0)\nd = [f.read(4 << 20) for _ in range(100)]\n"
        "end = time.time() + 3\nwhile time.time() < end: sum(range(10000))\n",
        BOUNDED,
        "loads (3[89]|4[012])[0-9] MiB, then flat",
        quick=True,
    ),
    Program(
        "loads 300 MiB, then leaks slowly",
        "d = bytearray(b'x') * (300 << 20)\n"
        + reads("(kept.append(bytearray(b'x') * (1 << 20)) if i % 5 == 0 else None); time.sleep(0.008)"),
        GROWS,
        "heap",
    ),
    Program(
        "spikes of 400 MiB",
        "for turn in range(4):\n    with open(path, 'rb', buffering=0) as f:\n"
        "        for i in range(50): f.read(4 << 20); time.sleep(0.03)\n"
        "    c = bytearray(b'x') * (400 << 20); time.sleep(0.2); del c\n",
        BOUNDED,
    ),
    Program("sleeps", "time.sleep(2)", BOUNDED, "flat for", quick=True, unclear=False),
]


def chosen(names: Sequence[str] = (), quick: bool = False) -> list[Program]:
    """The programs with one of ``names`` in theirs, or all."""
    return [
        program
        for program in PROGRAMS
        if (not quick or program.quick) and (not names or any(name in program.name for name in names))
    ]
