"""``torch.distributed.checkpoint``: saved by two ranks, loaded by three, with the place of the loaders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import lowtide

# Processes are forked from one that has imported PyTorch, which takes longer than all the rest.
SCRIPT = """
import json, os, sys
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
import lowtide

folder = sys.argv[1]

def run(rank, ranks, last):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{ranks}", rank=rank, world_size=ranks)
    corpus, marked = lowtide.corpus(folder), lowtide.corpus(folder, eos=7)
    mixed = lowtide.mix({"a": corpus, "b": lowtide.corpus(folder + "/other")}, {"a": 0.7, "b": 0.3})
    loaders = {
        "plain": corpus.batches(6, 8, seed=1, rank="auto").torch(),
        "documents": marked.batches(6, 8, seed=2, order="packed", rank="auto").with_documents().torch(),
        "mixture": mixed.batches(6, 8, seed=3, rank="auto").torch(),
    }
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 3)
    expected = model.weight.detach().clone()
    state = {"model": model.state_dict(), **loaders}  # which have state_dict and load_state_dict
    if last > 4:
        model.weight.data.zero_()
        dcp.load(state, checkpoint_id=folder + "/saved")
        model.load_state_dict(state["model"])
        assert torch.equal(model.weight, expected)
        assert [loader.step for loader in loaders.values()] == [4, 4, 4]
    for name, loader in loaders.items():
        while (step := loader.step) < last:
            parts = [None] * ranks
            dist.all_gather_object(parts, next(loader)[0].tolist())
            if rank == 0:
                print(json.dumps([name, step, sum(parts, [])]), flush=True)
    if last == 4:
        dcp.save(state, checkpoint_id=folder + "/saved")
    for loader in loaders.values():
        loader.close()
    dist.destroy_process_group()

for ranks, last in ((2, 4), (3, 8)):
    children = []
    for rank in range(ranks):
        child = os.fork()
        if not child:
            try:
                run(rank, ranks, last)
            except BaseException as error:
                import traceback
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    if any([os.waitpid(child, 0)[1] for child in children]):
        sys.exit(1)
"""


def test_checkpoint_of_two_ranks_resumes_on_three(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "other").mkdir()
    for folder in (tmp_path, tmp_path / "other"):
        rng.integers(0, 64, 2000, np.uint16).tofile(folder / "train.bin")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    corpus, other = lowtide.corpus(tmp_path), lowtide.corpus(tmp_path / "other")
    expected = {
        "plain": corpus.batches(6, 8, seed=1),
        "documents": lowtide.corpus(tmp_path, eos=7).batches(6, 8, seed=2, order="packed"),
        "mixture": lowtide.mix({"a": corpus, "b": other}, {"a": 0.7, "b": 0.3}).batches(6, 8, seed=3),
    }
    assert sorted((name, step) for name, step, _ in lines) == sorted(
        (n, s) for n in expected for s in range(8)
    )
    for name, step, rows in lines:
        assert rows == expected[name][step][0].tolist(), (name, step)
