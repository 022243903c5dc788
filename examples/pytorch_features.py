"""Feed PyTorch from features and targets on disk: a regression, stopped within an epoch and resumed exactly.

    python examples/pytorch_features.py

A tenth of the rows is kept for validation. The others come in a shuffled order that is computed and never
stored, each once an epoch. Where one is in it is a few integers, so that a checkpoint holds the place in the
data beside the weights.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader

import lowtide
from lowtide.torch import ArrayDataset, ChunkDataset

ROWS, COLUMNS = 100_000, 256
BATCH = 1024

torch.manual_seed(0)


def make(folder):
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(COLUMNS, dtype=np.float32) / 16
    with (
        lowtide.create(folder / "features.npy", "float32", row_shape=COLUMNS) as features,
        lowtide.create(folder / "targets.npy", "float32") as targets,
    ):
        for start in range(0, ROWS, 10_000):
            x = rng.standard_normal((min(10_000, ROWS - start), COLUMNS), dtype=np.float32)
            features.append(x)
            targets.append(np.tanh(x @ weights))


def loss_of(model, x, y):
    return torch.nn.functional.mse_loss(model(x).squeeze(1), y)


def step(model, optimizer, x, y):
    loss = loss_of(model, x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main(folder):
    pair = lowtide.zip(lowtide.open(folder / "features.npy"), lowtide.open(folder / "targets.npy"))
    train, validation = pair.split(0.9, seed=0)  # views: nothing is read or copied
    print(f"{len(train)} rows to train on, {len(validation)} to validate")
    model = torch.nn.Sequential(torch.nn.Linear(COLUMNS, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    # Half an epoch; then the program is stopped. A batch is a chunk, and the next is read meanwhile.
    dataset = ChunkDataset(train, BATCH, shuffle=True, seed=0)
    batches = iter(DataLoader(dataset, batch_size=None))
    losses = [step(model, optimizer, *next(batches)) for _ in range(len(dataset) // 2)]
    checkpoint = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "data": dataset.state_dict(),
    }
    expected = next(batches)  # what would have come

    # The program is started again, and continues with the very next row.
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    dataset = ChunkDataset(train, BATCH, shuffle=True, seed=0)
    dataset.load_state_dict(checkpoint["data"])
    for number, (x, y) in enumerate(DataLoader(dataset, batch_size=None)):
        if number == 0:
            assert torch.equal(x, expected[0])
            assert torch.equal(y, expected[1])
        losses.append(step(model, optimizer, x, y))

    with torch.no_grad():  # here any order will do; a batch is one read per file
        loader = DataLoader(ArrayDataset(validation), batch_size=BATCH)
        validated = np.mean([loss_of(model, x, y).item() for x, y in loader])
    print(f"{len(losses)} batches of {BATCH} rows, loss {losses[0]:.4f} to {losses[-1]:.4f}")
    print(f"and {validated:.4f} for rows that it has not seen")
    assert len(losses) == -(-len(train) // BATCH), "every row came once"
    assert validated < losses[0] / 5, "it has learned"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        make(Path(temporary))
        main(Path(temporary))
