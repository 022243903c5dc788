"""Fit scikit-learn's SGDClassifier to a matrix that does not fit into memory.

    python examples/sklearn_partial_fit.py [FOLDER]

The matrix has 527 MiB. To see that it needs none of them, run it where there are only 256:

    systemd-run --user --scope -p MemoryMax=256M -p MemorySwapMax=0 python examples/sklearn_partial_fit.py
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.linear_model import SGDClassifier

import lowtide
from lowtide.memory import snapshot

ROWS, COLUMNS = 270_000, 512
CHUNK = 4096  # rows in memory at a time: 8 MiB, and the next 8 are read meanwhile
EPOCHS = 2

rng = np.random.default_rng(0)
hidden = rng.standard_normal(COLUMNS, dtype=np.float32)  # the plane that the classifier is to find


def some_rows(count):
    """Features and labels. One label in twenty is wrong: no classifier can be right more often than 95 %."""
    features = rng.random((count, COLUMNS), dtype=np.float32) - 0.5
    labels = (features @ hidden > 0) ^ (rng.random(count) < 0.05)
    return features, labels.astype(np.int8)


def make(folder):
    """The two files, written piece by piece: neither was ever in memory as a whole."""
    with (
        lowtide.create(folder / "features.npy", "float32", row_shape=COLUMNS) as features,
        lowtide.create(folder / "labels.npy", "int8") as labels,
    ):
        for start in range(0, ROWS, CHUNK):
            x, y = some_rows(min(CHUNK, ROWS - start))
            features.append(x)
            labels.append(y)


def fit(folder):
    """Every row once an epoch, in another order each time."""
    pair = lowtide.zip(lowtide.open(folder / "features.npy"), lowtide.open(folder / "labels.npy"))
    model = SGDClassifier(loss="log_loss", alpha=1e-3, average=True, random_state=0)
    for epoch in range(EPOCHS):
        for x, y in pair.chunks(CHUNK, shuffle=True, epoch=epoch):
            model.partial_fit(x, y, classes=[0, 1])
    return model


def main(folder):
    if not (folder / "labels.npy").exists():
        make(folder)
    size = (folder / "features.npy").stat().st_size
    limit = snapshot().cgroup_limit
    allowed = f"{limit / 2**20:.1f} MiB" if limit else "no limit"
    print(f"the matrix has {size >> 20} MiB, this container {allowed}")

    # Raises when the block needs more, with the numbers and what it was that grew.
    with lowtide.watch(budget="96 MiB") as memory:
        model = fit(folder)
    print(f"fitting took {memory.growth >> 20} MiB; the whole process reached {memory.peak >> 20} MiB")

    x, y = some_rows(10_000)  # that the model has not seen
    accuracy = model.score(x, y)
    print(f"right for {accuracy:.1%} of new rows; 95 % are possible")
    assert accuracy > 0.9


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
