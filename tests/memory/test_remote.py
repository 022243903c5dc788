"""Memory of reading from a bucket: a corpus four times as large as the limit of a real memory cgroup."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

from lowtide._io.remote.address import IN_FLIGHT
from lowtide._tokens.blocks import BUFFER
from tests.support.servers import BUCKET, ObjectServer

MIB = 2**20
LIMIT = 128 * MIB
SHARDS, SHARD = 16, 32 * MIB
FLOOR = 24 * MIB  # of obstore itself, once, for its code and its threads: 17 to 18 were measured
SLACK = 16 * MIB  # 10 to 13 were measured: malloc keeps what obstore's connections have freed

WORKER = """
import json, sys
import numpy as np, lowtide, lowtide.memory
from lowtide._memory import proc
from lowtide.memory import peak, reset_peak

o = json.loads(sys.argv[1])
start = proc.status().rss
corpus = lowtide.corpus(o["path"], dtype="uint16")
corpus[:1000]
floor = proc.status().rss - start
assert reset_peak()
before, total = proc.status().rss, 0
batches = corpus.batches(64, 1024, order=o["order"], seed=1)
for _ in range(o["steps"]):
    x, y = next(batches)
    total += x.nbytes
batches.close()
print(json.dumps({"floor": floor, "peak": peak() - before, "total": total}))
"""


@pytest.fixture(scope="module")
def corpus(object_server: ObjectServer) -> str:
    import obstore

    client = object_server.store()
    tokens = np.random.default_rng(0).integers(0, 50257, SHARD // 2, dtype=np.uint16)
    obstore.put(client, "memory/part-00.bin", tokens.view(np.uint8), use_multipart=False)
    for number in range(1, SHARDS):
        obstore.copy(client, "memory/part-00.bin", f"memory/part-{number:02}.bin")
    return f"s3://{BUCKET}/memory/*.bin"


@pytest.mark.parametrize(("order", "steps"), [("blocks", 4000), ("shuffle", 60)])
def test_remote_corpus_of_four_times_the_limit_is_read(
    order: str, steps: int, corpus: str, object_server: ObjectServer, limited: Any
) -> None:
    assert SHARDS * SHARD == 4 * LIMIT
    task = {"path": corpus, "order": order, "steps": steps}
    with limited(LIMIT) as group:
        done = group.run(
            [sys.executable, "-c", textwrap.dedent(WORKER), json.dumps(task)],
            env=os.environ | object_server.environment(),
        )
        assert done.returncode == 0, done.stderr
        assert group.oom_kills() == 0
    result = json.loads(done.stdout)
    batches = 5 * 64 * 1025 * 2
    held = (2 * BUFFER if order == "blocks" else 0) + IN_FLIGHT + batches
    assert result["total"] == steps * 64 * 1024 * 2
    assert result["floor"] < FLOOR, f"{result['floor'] / MIB:.1f} MiB"
    assert result["peak"] < held + SLACK, f"{result['peak'] / MIB:.1f} MiB, expected {held / MIB:.1f} + 16"
