"""Feed PyTorch from a matrix on disk: a regression, stopped within an epoch and resumed exactly.

    python examples/pytorch_features.py

Rows come in a shuffled order that is computed and never stored, each once an epoch. Where one is in it is two
integers, so that a checkpoint holds the place in the data beside the weights.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

import lowtide

ROWS, COLUMNS = 100_000, 257  # the last column is the target, predicted from the others
CHUNK = 1024  # rows of a batch

torch.manual_seed(0)


def make(path):
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(COLUMNS - 1, dtype=np.float32) / 16
    with lowtide.create(path, "float32", row_shape=COLUMNS) as out:
        for start in range(0, ROWS, 10_000):
            features = rng.standard_normal((min(10_000, ROWS - start), COLUMNS - 1), dtype=np.float32)
            out.append(np.column_stack([features, np.tanh(features @ weights)]))


def step(model, optimizer, chunk):
    rows = torch.from_numpy(chunk)  # the chunk is its own array: no copy, and nobody overwrites it
    loss = torch.nn.functional.mse_loss(model(rows[:, :-1]).squeeze(1), rows[:, -1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main(path):
    array = lowtide.open(path)
    print(array)
    model = torch.nn.Sequential(torch.nn.Linear(COLUMNS - 1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    # Half an epoch; then the program is stopped. Chunks are read ahead by a thread while the model works.
    chunks = array.chunks(CHUNK, shuffle=True, seed=0)
    half = len(chunks) // 2
    losses = [step(model, optimizer, chunk) for _, chunk in zip(range(half), chunks, strict=False)]
    checkpoint = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "data": chunks.state_dict(),
    }
    expected = next(chunks)  # what would have come
    chunks.close()

    # The program is started again, and continues with the very next row.
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    chunks = array.chunks(CHUNK, shuffle=True, seed=0)
    chunks.load_state_dict(checkpoint["data"])
    for number, chunk in enumerate(chunks):
        if number == 0:
            np.testing.assert_array_equal(chunk, expected)
        losses.append(step(model, optimizer, chunk))

    print(f"{len(losses)} batches of {CHUNK} rows, loss {losses[0]:.4f} to {losses[-1]:.4f}")
    print(f"in memory were {chunks.nbytes_in_flight >> 20} of {array.nbytes >> 20} MiB at a time")
    assert len(losses) == -(-ROWS // CHUNK), "every row came once"
    assert losses[-1] < losses[0] / 5, "it has learned"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / "features.npy")
        main(Path(folder) / "features.npy")
