"""Object stores: token batches of 64 x 1,024 from a real S3 server on loopback, at 0 and 20 ms of latency.

Bars, at 20 ms: order="blocks" at least 0.8 of what plain concurrent gets of 1 MiB by obstore reach with the
same bytes in flight, and ahead of every peer; at most 1.1 bytes fetched per byte used; the first batch of a
corpus of 10,000 shards within 1 s. Every loader runs in its own process; loaders take turns, figures are
medians.

The server is SeaweedFS; a proxy in front of it, below, adds the latency and counts requests and bytes. Peers
that are not installed are listed in a note: s3fs asks for another botocore than boto3 does, and MosaicML
Streaming for another NumPy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.servers import BUCKET, ObjectServer, object_server, shared

from benchmarks.harness import MIB, Report, run

BATCH, LENGTH = 64, 1024
IN_FLIGHT = 16
OBSTORE, BLOCKS = "obstore, gets of 1 MiB", "lowtide, order=blocks"
USED = BATCH * LENGTH * 2  # bytes of tokens per batch

START = """
import json, os, sys, time
import numpy as np
o = json.loads(sys.argv[1])
started = time.perf_counter()
def batches():
{body}
source = batches()
next(source)
first = time.perf_counter() - started
def disk():
    total = 0
    for place, _, names in os.walk(o["disk"]):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_blocks * 512
            except FileNotFoundError:  # evicted or renamed meanwhile
                pass
    return total
count, most, measured = 0, disk(), time.perf_counter()
while time.perf_counter() - measured < o["seconds"]:
    try:
        next(source)
    except StopIteration:
        break
    count += 1
    if count % 50 == 0:
        most = max(most, disk())
seconds = time.perf_counter() - measured
print(json.dumps({{"batches": count, "seconds": seconds, "first": first, "disk": max(most, disk()),
    "peak": int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) * 1024}}), flush=True)
os._exit(0)
"""

LOADERS = {
    OBSTORE: """
    import obstore
    from concurrent.futures import ThreadPoolExecutor
    from obstore.store import S3Store
    store = S3Store(o["bucket"], client_options={"allow_http": True})
    size = obstore.head(store, "bench/train.bin")["size"]
    starts = np.random.default_rng(0).permutation(size // 2**20) * 2**20
    def get(start):
        data = obstore.get_range(store, "bench/train.bin", start=int(start), length=2**20)
        return np.frombuffer(data, "<u2")
    with ThreadPoolExecutor(o["in_flight"]) as pool:
        while True:
            pending, at = [], 0
            for start in starts:
                pending.append(pool.submit(get, start))
                if len(pending) == o["in_flight"]:
                    tokens = pending.pop(0).result()
                    for _ in range(8):  # batches in a MiB
                        yield tokens
    """,
    BLOCKS: """
    import lowtide
    corpus = lowtide.corpus(f"s3://{o['bucket']}/bench/train.bin", dtype="uint16")
    yield from corpus.batches(64, 1024, order="blocks", seed=1)
    """,
    "lowtide, blocks, cached": """
    import lowtide
    path = f"s3://{o['bucket']}/bench/train.bin"
    corpus = lowtide.corpus(path, dtype="uint16", cache_dir=o["disk"], cache="1 GiB")
    yield from corpus.batches(64, 1024, order="blocks", seed=1)
    """,
    "lowtide, order=shuffle": """
    import lowtide
    corpus = lowtide.corpus(f"s3://{o['bucket']}/bench/train.bin", dtype="uint16")
    yield from corpus.batches(64, 1024, order="shuffle", seed=1)
    """,
    "boto3, 32 threads": """
    import boto3
    from botocore.config import Config
    from concurrent.futures import ThreadPoolExecutor
    client = boto3.client("s3", config=Config(max_pool_connections=32))
    size = client.head_object(Bucket=o["bucket"], Key="bench/train.bin")["ContentLength"]
    random = np.random.default_rng(0)
    def get(start):
        where = {"Bucket": o["bucket"], "Key": "bench/train.bin", "Range": f"bytes={start}-{start + 2049}"}
        return np.frombuffer(client.get_object(**where)["Body"].read(), "<u2")
    with ThreadPoolExecutor(32) as pool:
        while True:
            yield np.stack(list(pool.map(get, (random.integers(0, size // 2 - 1025, 64) * 2).tolist())))
    """,
    "s3fs, cat_ranges": """
    import s3fs
    fs = s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    path = f"{o['bucket']}/bench/train.bin"
    size, random = fs.size(path), np.random.default_rng(0)
    while True:
        starts = (random.integers(0, size // 2 - 1025, 64) * 2).tolist()
        parts = fs.cat_ranges([path] * 64, starts, [start + 2050 for start in starts])
        yield np.stack([np.frombuffer(part, "<u2") for part in parts])
    """,
    "LitData, converted": """
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader
    from litdata.streaming.item_loader import TokensLoader
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # the server has no TLS
    data = StreamingDataset(f"s3://{o['bucket']}/litdata", cache_dir=o["disk"], shuffle=True,
        item_loader=TokensLoader(block_size=1025), max_cache_size="1GB")
    while True:
        yield from StreamingDataLoader(data, batch_size=64, num_workers=1)
    """,
    "MosaicML Streaming": """
    from streaming import StreamingDataset
    raise ImportError("its environment is another one")
    yield None
    """,
}
PEERS = [name for name in LOADERS if not name.startswith(("lowtide", "obstore"))]

LITDATA = """
import sys
import numpy as np, torch
from litdata import optimize
from litdata.streaming.item_loader import TokensLoader

def items(start):
    tokens = np.fromfile(sys.argv[1], "<u2", count=2**22, offset=start * 2)
    yield torch.from_numpy(tokens.astype(np.int32))

if __name__ == "__main__":
    count = int(sys.argv[3])
    optimize(items, list(range(0, count - 2**22 + 1, 2**22)), sys.argv[2], chunk_bytes="32MB", num_workers=1,
        item_loader=TokensLoader(block_size=1025))
"""


class Proxy:
    """Forwards TCP in a separate process; each request from a client waits, and is counted."""

    def __init__(self, port: int, latency: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.remote", "--proxy", f"{port},{latency}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = int(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def counts(self) -> tuple[int, int]:
        """Requests and bytes of answers since the last call."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        requests, nbytes = json.loads(self._line())
        return requests, nbytes

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


async def _proxy(port: int, latency: float) -> None:
    counts = [0, 0]

    async def forward(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float, is_request: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(2**20):
                if is_request:
                    counts[0] += data.startswith((b"GET ", b"HEAD ", b"PUT ", b"POST "))
                    await asyncio.sleep(delay)
                else:
                    counts[1] += len(data)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await asyncio.open_connection("127.0.0.1", port, limit=2**21)
        await asyncio.gather(forward(reader, behind[1], latency, True), forward(behind[0], writer, 0, False))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=2**21)
    print(server.sockets[0].getsockname()[1], flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):  # ends with the process that asks
        print(json.dumps(counts), flush=True)
        counts[:] = [0, 0]


@contextmanager
def _proxied(port: int, latency: float) -> Iterator[Proxy]:
    proxy = Proxy(port, latency)
    try:
        yield proxy
    finally:
        proxy.close()


def _fill(server: ObjectServer, folder: Path, mib: int) -> str | None:
    """Put the corpora into the bucket; why there is none of LitData, if so."""
    import lowtide

    path = folder / "train.bin"
    random = np.random.default_rng(0)
    with open(path, "wb") as file:
        for _ in range(mib // 8):
            random.integers(0, 50257, 4 * MIB).astype("<u2").tofile(file)
    lowtide.copy(path, f"s3://{BUCKET}/bench/train.bin", storage_options=server.options, verify=False)
    script = folder / "convert.py"
    script.write_text(LITDATA)
    command = [sys.executable, str(script), str(path), str(folder / "litdata"), str(mib * MIB // 2)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it failed"])[-1]
    lowtide.copy(folder / "litdata", f"s3://{BUCKET}/litdata", storage_options=server.options, verify=False)
    return None


def _measure(name: str, server: ObjectServer, proxy: Proxy, seconds: float) -> dict[str, Any] | str:
    environment = os.environ | server.environment()
    environment |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}", "AWS_DEFAULT_REGION": "us-east-1"}
    environment["AWS_ALLOW_HTTP"] = "true"
    code = START.format(body=textwrap.indent(textwrap.dedent(LOADERS[name]), "    "))
    with tempfile.TemporaryDirectory(prefix="lowtide-bench-") as disk:
        task = {"bucket": BUCKET, "seconds": seconds, "disk": disk, "in_flight": IN_FLIGHT}
        command = [sys.executable, "-W", "ignore", "-c", code, json.dumps(task)]
        proxy.counts()
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                env=environment,
                timeout=20 * seconds + 60,
            )
        except subprocess.TimeoutExpired:
            return "took too long"
        requests, nbytes = proxy.counts()
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        reasons = [line for line in done.stderr.splitlines() if "Error" in line]
        return (reasons or ["it failed"])[-1][:200]
    figures: dict[str, Any] = json.loads(lines[-1])
    used = (figures["batches"] + 1) * USED
    return figures | {"requests": requests / used * 2**30, "fetched": nbytes / used}


def _at(latency: float, server: ObjectServer, options: argparse.Namespace, missing: dict[str, str]) -> Report:
    report = Report(f"From a bucket at {latency * 1000:.0f} ms: 64 x 1,024 tokens, {options.mib} MiB")
    figures: dict[str, list[dict[str, Any]]] = {name: [] for name in LOADERS if name not in missing}
    with _proxied(server.port, latency) as proxy:
        for _ in range(options.rounds):
            for name in list(figures):
                result = _measure(name, server, proxy, options.seconds)
                if isinstance(result, str):
                    missing[name] = result
                    del figures[name]
                else:
                    figures[name].append(result)
    speeds = {}
    for name, results in figures.items():
        middle = {key: statistics.median(one[key] for one in results) for key in results[0]}
        speeds[name] = statistics.median(one["batches"] / one["seconds"] for one in results)
        report.row(
            name,
            **{
                "batches/s": speeds[name],
                "first s": middle["first"],
                "requests/GiB": middle["requests"],
                "fetched/used": middle["fetched"],
                "peak MiB": middle["peak"] / MIB,
                "disk MiB": middle["disk"] / MIB,
            },
        )
    for name, reason in missing.items():
        report.notes.append(f"{name}: {reason}")
    if OBSTORE in speeds and BLOCKS in speeds and latency:
        report.claim("blocks / plain gets of 1 MiB", speeds[BLOCKS] / speeds[OBSTORE], 0.8)
        for name in PEERS:
            if name in speeds:
                report.claim(f"blocks / {name}", speeds[BLOCKS] / speeds[name], 1)
        fetched = statistics.median(one["fetched"] for one in figures[BLOCKS])
        # Of a short run: the window that is read ahead is not used yet.
        ahead = 2 * 16 * MIB / statistics.median((one["batches"] + 1) * USED for one in figures[BLOCKS])
        report.claim(
            "bytes fetched per byte used, without those read ahead", fetched - ahead, 1.1, at_most=True
        )
    return report


MANY = """
import sys, time
import lowtide, numpy, obstore
import lowtide._tokens.batches, lowtide._tokens.blocks, lowtide._tokens.corpus, lowtide._io.remote.reader
started = time.perf_counter()
corpus = lowtide.corpus(sys.argv[1])
x, y = next(corpus.batches(64, 1024, order="blocks", seed=1))
print(time.perf_counter() - started)
"""


def _many(folder: Path, options: argparse.Namespace) -> Report:
    """10,000 shards that are one file under many names, on a web server, at 20 ms."""
    from lowtide._tokens.formats import own

    report = Report("First batch of a corpus of 10,000 shards of 64 MiB, at 20 ms")
    port = shared("http", folder)
    place = folder / "http-data" / "large"
    place.mkdir()
    with open(place / "train-00000.bin", "wb") as file:
        file.truncate(64 * MIB)
    shards = [own.Shard(f"train-{i:05}.bin", 32 * MIB, "0" * 64) for i in range(10_000)]
    for shard in shards[1:]:
        os.link(place / "train-00000.bin", place / shard.file)
    own.write(place, own.Manifest("uint16", {"train": shards}))
    taken = []
    with _proxied(port, 0.02) as proxy:
        for _ in range(options.rounds):
            address = f"http://127.0.0.1:{proxy.port}/large/corpus.json"
            command = [sys.executable, "-c", MANY, address]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            taken.append(float(done.stdout))
        requests, _ = proxy.counts()
    seconds = statistics.median(taken)
    report.row("lowtide, corpus.json", seconds=seconds, requests=requests / options.rounds)
    report.claim("seconds", seconds, 1, at_most=True)
    return report


def _training(folder: Path, server: ObjectServer) -> Report:
    """A small model on the CPU: what part of a step the loader takes."""
    report = Report("Training from a bucket at 20 ms")
    with _proxied(server.port, 0.02) as proxy:
        environment = os.environ | server.environment()
        environment["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{proxy.port}"
        words = f"train --data s3://{BUCKET}/bench/train.bin --token-dtype uint16 --vocab-size 50304"
        words += " --device cpu --preset nanogpt --n-layer 2 --n-head 4 --n-embd 128 --length 256"
        words += f" --batch-size 8 --max-iters 20 --eval-interval 0 --out {folder / 'run'}"
        command = [sys.executable, "-c", "from lowtide.cli import main; main()", *words.split()]
        subprocess.run(command, check=True, capture_output=True, env=environment)
    records = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
    steps = [
        record for record in records if record["step"] > 5
    ]  # the first blocks have nothing to hide behind
    share = sum(one["loader_ms"] for one in steps) / sum(one["step_ms"] for one in steps)
    report.row(
        "lowtide train",
        **{"% of a step": 100 * share, "ms per step": statistics.median(one["step_ms"] for one in steps)},
    )
    report.claim("% of a step that the loader takes", 100 * share, 2, at_most=True)
    return report


def build(options: argparse.Namespace) -> list[Report]:
    """Loaders from a bucket, with and without latency, and many shards."""
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="lowtide-bench-", dir=options.folder) as where:
        folder = Path(where)
        server = object_server(folder)
        reason = _fill(server, folder, options.mib)
        if reason is not None:
            missing["LitData, converted"] = reason
        reports = [_at(latency, server, options, missing) for latency in (0.0, 0.02)]
        return [*reports, _training(folder, server), _many(folder, options)]


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=int, default=512, help="size of the corpus")
    parser.add_argument("--seconds", type=float, default=5, help="of each measurement")
    parser.add_argument("--proxy", help=argparse.SUPPRESS)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--proxy":
        port, latency = sys.argv[2].split(",")
        asyncio.run(_proxy(int(port), float(latency)))
    else:
        run(build, _more, rounds=3)
