"""Object stores: token batches of 64 x 1,024 from a real S3 server on loopback, at 0 and 20 ms of latency.

Bars, at 20 ms: order="blocks" at least 0.8 of what plain concurrent gets of 1 MiB by obstore reach with the
same bytes in flight, and ahead of every peer; at most 1.1 bytes fetched per byte used; the first batch of a
corpus of 10,000 shards within 1 s. Every loader runs in its own process; loaders take turns, figures are
medians.

The server is SeaweedFS; a proxy in front of it, below, adds the latency and counts requests and bytes. How
each loader is used is in `remote_loaders`. MosaicML Streaming runs in a separate environment, which
`make bench` or `make .venv-mosaicml/.done` makes; a peer that is not installed or fails is listed with the
reason.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.servers import BUCKET, ObjectServer, object_server, shared

from benchmarks.harness import MIB, Report, run
from benchmarks.remote_loaders import BATCH, BLOCKS, KEY, LENGTH, LOADERS, OBSTORE, PEERS, Loader

IN_FLIGHT = 16
USED = BATCH * LENGTH * 2  # bytes of tokens per batch


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


def _chosen(only: list[str]) -> dict[str, Loader]:
    return {name: loader for name, loader in LOADERS.items() if any(fnmatchcase(name, one) for one in only)}


def _fill(server: ObjectServer, folder: Path, mib: int, only: list[str]) -> dict[str, str]:
    """Put the corpora into the bucket; why some peers have none, if so."""
    import lowtide

    path = folder / "train.bin"
    random = np.random.default_rng(0)
    with open(path, "wb") as file:
        for _ in range(mib // 8):
            random.integers(0, 50257, 4 * MIB).astype("<u2").tofile(file)
    lowtide.copy(path, f"s3://{BUCKET}/{KEY}", storage_options=server.options, verify=False)
    missing = {}
    for name, loader in _chosen(only).items():
        if not Path(loader.python).exists():
            missing[name] = "is not installed: make .venv-mosaicml/.done"
        elif loader.converted:
            words = ["-W", "ignore", "-m", "benchmarks.loaders", loader.converted, f"convert:{folder}"]
            done = subprocess.run([loader.python, *words], capture_output=True, text=True, check=False)
            if done.returncode:
                missing[name] = (done.stderr.strip().splitlines() or ["it failed"])[-1]
                continue
            source, target = folder / loader.folder, f"s3://{BUCKET}/{loader.folder}"
            lowtide.copy(source, target, storage_options=server.options, verify=False)
    return missing


def _measure(name: str, server: ObjectServer, proxy: Proxy, seconds: float) -> dict[str, Any] | str:
    environment = os.environ | server.environment()
    endpoint = f"http://127.0.0.1:{proxy.port}"
    environment |= {"AWS_ENDPOINT_URL": endpoint, "S3_ENDPOINT_URL": endpoint}
    environment |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
    with tempfile.TemporaryDirectory(prefix="lowtide-bench-") as disk:
        task = {"bucket": BUCKET, "seconds": seconds, "disk": disk, "in_flight": IN_FLIGHT}
        words = ["-W", "ignore", "-m", "benchmarks.remote_loaders", name, json.dumps(task)]
        proxy.counts()
        process = subprocess.Popen(
            [LOADERS[name].python, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        try:
            printed, complaints = process.communicate(timeout=2 * seconds + 30)
        except subprocess.TimeoutExpired:
            return "took too long"
        finally:  # and the workers that it left
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        requests, nbytes = proxy.counts()
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        reasons = [line for line in complaints.splitlines() if "Error" in line]
        return (reasons or ["it failed"])[-1][:200]
    figures: dict[str, Any] = json.loads(lines[-1])
    used = (figures["batches"] + 1) * USED
    return figures | {"requests": requests / used * 2**30, "fetched": nbytes / used}


def _at(latency: float, server: ObjectServer, options: argparse.Namespace, missing: dict[str, str]) -> Report:
    report = Report(f"From a bucket at {latency * 1000:.0f} ms: 64 x 1,024 tokens, {options.mib} MiB")
    figures: dict[str, list[dict[str, Any]]] = {
        name: [] for name in _chosen(options.only) if name not in missing
    }
    failures: dict[str, list[str]] = {}
    with _proxied(server.port, latency) as proxy:
        for _ in range(options.rounds):
            for name in figures:
                result = _measure(name, server, proxy, options.seconds)
                if isinstance(result, str):
                    failures.setdefault(name, []).append(result)
                else:
                    figures[name].append(result)
    speeds = {}
    for name, reasons in failures.items():
        report.notes.append(f"{name}: failed in {len(reasons)} of {options.rounds} rounds: {reasons[0]}")
    for name, results in figures.items():
        if not results:
            continue
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
        words = f"train --data s3://{BUCKET}/{KEY} --token-dtype uint16 --vocab-size 50304"
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
    with tempfile.TemporaryDirectory(prefix="lowtide-bench-", dir=options.folder) as where:
        folder = Path(where)
        server = object_server(folder)
        missing = _fill(server, folder, options.mib, options.only)
        reports = [_at(latency, server, options, missing) for latency in (0.0, 0.02)]
        if options.only == ["*"]:
            reports += [_training(folder, server), _many(folder, options)]
        return reports


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=int, default=512, help="size of the corpus")
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement")
    parser.add_argument("--only", nargs="+", default=["*"], help="loaders by patterns: 'lowtide*' 's3fs*'")
    parser.add_argument("--proxy", help=argparse.SUPPRESS)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--proxy":
        port, latency = sys.argv[2].split(",")
        asyncio.run(_proxy(int(port), float(latency)))
    else:
        run(build, _more, rounds=3)
