"""Mean and standard deviation of every column of a large file, on a Dask cluster.

    python examples/dask_mean.py [FILE.npy]

Without a file it makes one of 512 MiB. The cluster is two processes on this machine; for a real one write
`Client("tcp://head:8786")`. Workers read the file themselves: what travels is a path, and the result.
"""

import sys
import tempfile
from pathlib import Path

import dask
import numpy as np
from dask.distributed import Client, LocalCluster

import lowtide
from lowtide.memory import snapshot


def make(path):
    """A column has its own number as its mean."""
    rng = np.random.default_rng(0)
    with lowtide.create(path, "float32", row_shape=256) as out:
        for _ in range(128):
            out.append(rng.standard_normal((4096, 256), dtype=np.float32) + np.arange(256, dtype=np.float32))


def peak():
    return snapshot().peak


def main(path):
    array = lowtide.open(path)
    columns = lowtide.to_dask(
        array, chunks="16 MiB"
    )  # whole rows, as many as fit: each block is one long read
    print(columns)

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        # In one call, so that each block is read once for both. Sums of many float32 want float64.
        mean, std = dask.compute(columns.mean(axis=0, dtype="f8"), columns.std(axis=0, dtype="f8"))
        peaks = list(client.run(peak).values())

    print("mean of the first columns", mean[:5].round(2), "standard deviation", std[:5].round(2))
    reached = ", ".join(f"{peak >> 20} MiB" for peak in peaks)
    print(f"the file has {array.nbytes >> 20} MiB; its workers reached {reached}")
    assert max(peaks) < 256 * 2**20, "a worker never holds more than a few blocks"
    return mean, std


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder) / "columns.npy")
            result, spread = main(Path(folder) / "columns.npy")
            np.testing.assert_allclose(result, np.arange(256), atol=0.01)
            np.testing.assert_allclose(spread, 1, atol=0.01)
