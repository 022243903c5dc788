"""`import lowtide` imports no NumPy, and opening an array imports nothing heavy."""

from __future__ import annotations

from tests.support.process import output

HEAVY = {
    "click", "dask", "h5py", "hypothesis", "matplotlib", "multiprocessing", "numpy.random", "psutil",
    "pytest", "rich", "safetensors", "scipy", "torch", "tqdm",
}  # fmt: skip


def modules_after(code: str) -> set[str]:
    return set(output(f"{code}\nimport sys; print(*sys.modules)").split())


def test_import_loads_nothing_heavy() -> None:
    loaded = modules_after("import lowtide")
    assert not loaded & HEAVY
    assert "numpy" not in loaded


def test_opening_and_reading_load_nothing_heavy(tmp_path: object) -> None:
    code = f"""
import numpy as np, lowtide
np.save({str(tmp_path)!r} + "/a.npy", np.arange(10000).reshape(100, 100))
a = lowtide.open({str(tmp_path)!r} + "/a.npy")
a[3], a[::2, 5], [c.sum() for c in a.chunks(7, shuffle=True)], [c.sum() for c in a.chunks(shuffle="blocks")]
"""
    assert not modules_after(code) & HEAVY


def test_submodules_need_no_separate_import() -> None:
    code = """
        import lowtide
        print(lowtide.memory.snapshot().rss > 0, lowtide.errors.FormatError.__name__)
    """
    assert output(code) == "True FormatError\n"
