"""The README and the guide: every code block runs as it stands."""

from __future__ import annotations

import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

import lowtide
from tests.support import guide
from tests.support.servers import ObjectServer
from tests.support.training import corpus, tiny

# Added to each `lowtide train` of a page: the same command, on a model that learns nothing in a moment.
SMALL = "--n-layer 1 --n-head 2 --n-embd 16 --length 32 --batch-size 2 --max-iters 3 --eval-iters 1"
TEXT = "The tide goes out and the sand is wet. The tide comes in and the sand is gone.\n"

THEIRS = [  # warnings of other packages
    "ignore:.*multi-threaded, use of fork:DeprecationWarning",
    "ignore:'set_vital' is deprecated:UserWarning",  # torchdata 0.11, PyTorch 2.13
    "ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning",  # Lightning
    "ignore:The 'train_dataloader' does not have many workers:UserWarning",  # Lightning
    "ignore:Your `IterableDataset` has `__len__` defined:UserWarning",  # Lightning
]
START_WITH_A_RUN = {"docs/gpt.md", "docs/commands/export.md", "docs/commands/sample.md"}
PAGES = [page for page in guide.pages() if any(True for _ in guide.blocks(page))]


def name(page: Path) -> str:
    return page.relative_to(guide.ROOT).as_posix()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of which the guide speaks, as small as may be."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("features.npy", rng.random((10_000, 256), np.float32))
    np.save("labels.npy", rng.integers(0, 2, 10_000))
    np.savez("arrays.npz", train=np.zeros((100, 8)), test=np.zeros((10, 8)))
    import_module("safetensors.numpy").save_file({"wte": np.zeros((64, 8))}, "weights.safetensors")
    np.zeros(256 + 2 * 480 * 640, np.float32).tofile("frames.raw")
    with open("train.bin", "wb") as file:
        file.truncate(256 * 2**20)  # a hole: it takes no disk, and its pages are as real as any
    (tmp_path / "train.py").write_text(
        'import numpy as np\ntokens = np.memmap("train.bin", np.uint16, "r")\n'
        "for start in range(0, len(tokens), 2**21):\n    tokens[start : start + 2**21].sum()\n"
    )
    corpus(tmp_path / "data" / "openwebtext", 300_000)
    corpus(tmp_path / "data" / "code", 50_000)
    (tmp_path / "books").mkdir()
    for title in ("one", "two"):
        (tmp_path / "books" / f"{title}.txt").write_text(TEXT * 200)
    lines = "".join(json.dumps({"text": f"{number}: {TEXT}"}) + "\n" for number in range(200))
    (tmp_path / "web.jsonl").write_text(lines)
    (tmp_path / "web.jsonl.zst").write_bytes(zstandard.compress(lines.encode()))
    arrow: Any = import_module("pyarrow")
    import_module("pyarrow.parquet").write_table(arrow.table({"text": [TEXT] * 100}), "wiki.parquet")
    return tmp_path


def given(page: str) -> dict[str, Any]:
    """The names that a page takes as its reader's own."""
    if page == "docs/loaders.md":
        return {
            "model": lambda x, y: (x + y).sum(),
            "lightning_model": _lightning_model(),
            "gpt2": _gpt2(),
            "data_dir": "data/openwebtext",
            "block_size": 64,
            "batch_size": 4,
        }
    if page == "docs/memory.md":
        return {"train_one_epoch": lambda: None}
    return {}


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, for the pages that start with one."""
    path = tmp_path_factory.mktemp("trained")
    data = corpus(path / "data")
    import_module("lowtide._gpt.train").run(tiny(data, preset="nanogpt", max_iters=2), str(path / "run"))
    return path / "run"


@pytest.mark.parametrize("page", PAGES, ids=name)
@pytest.mark.filterwarnings(*THEIRS)
def test_every_block_runs(page: Path, folder: Path, request: pytest.FixtureRequest) -> None:
    """One after another, as a reader would type them."""
    if name(page) in START_WITH_A_RUN:
        shutil.copytree(request.getfixturevalue("trained"), folder / "run")
    if name(page) == "docs/remote.md":
        _fill_bucket(request.getfixturevalue("object_server"), folder, request.getfixturevalue("monkeypatch"))
    reader = guide.Reader(folder, given(name(page)), SMALL)
    for block in guide.blocks(page):
        if block.reason is None:
            reader.run(block)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_not_run_have_listed_reason(page: Path) -> None:
    """No block hides behind its language, its indentation or its own reason."""
    blocks = list(guide.blocks(page))
    for number, block in enumerate(blocks):
        assert block.language in guide.LANGUAGES, f"{block.where}: a block of {block.language or 'nothing'!r}"
        if block.language == "text":
            assert not block.source.startswith(("$ ", "lowtide ", "pip ", "import ", "python ")), block.where
        if block.title or block.language == "toml":  # a file: something below must use it
            used = [later for later in blocks[number:] if f" {block.title}" in later.source]
            assert used, f"{block.where}: no block below uses {block.title}"
        if block.reason is not None:
            for command in block.commands:
                reasons = [why for how, why in guide.NOT_RUN.items() if command.startswith(how)]
                assert reasons == [block.reason], f"{block.where}: {command!r} is not run: {block.reason}"


def read(folder: Path, text: str) -> None:
    page = folder / "page.md"
    page.write_text(text)
    reader = guide.Reader(folder, {})
    for block in guide.blocks(page):
        reader.run(block)


def test_blocks_of_a_page_share_names_and_files(tmp_path: Path) -> None:
    read(
        tmp_path,
        '```python title="made.py"\nprint("hello", 7)\n```\n'
        "```console\n$ python made.py\nhello 7\n$ echo done > done.txt\n```\n"
        "<!-- figures vary -->\n```console\n$ python made.py\nhello 12.5 MiB\n```\n"
        "```python\nx = 3\n```\n```pycon\n>>> x + 1\n4\n>>> y = x\n```\n```python\nassert y == 3\n```\n"
        "```sh\ntest -s done.txt\n```\n",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n```python\nassert 1 == 2, 'odd'\n```\n", "odd"),
        ("\n```python\ndef test_it():\n    assert 1 == 2, 'odd'\n```\n", "odd"),
        ("\n```pycon\n>>> 1 + 1\n3\n```\n", "page.md:3"),
        ("\n```sh\nfalse\ntrue\n```\n", "page.md:3: exit status 1"),
        ("\n```console\n$ echo a\nb\n```\n", "page.md:3: echo a"),
        ("\n```console\necho a\n```\n", "without a command"),
        ("<!-- figures vary -->\n```console\n$ echo grows 1\nbounded 2\n```\n", "page.md:3"),
    ],
)
def test_failing_block_raises(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        read(tmp_path, text)


def _fill_bucket(server: ObjectServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bucket of which the page speaks; the environment leads there."""
    for variable, value in server.environment().items():
        monkeypatch.setenv(variable, value)
    lowtide.copy(folder / "features.npy", "s3://bucket/features.npy")
    lowtide.copy(folder / "data" / "openwebtext", "s3://bucket/corpus")


def _lightning_model() -> Any:
    lightning: Any = import_module("lightning")
    torch: Any = import_module("torch")

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Embedding(64, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            return self.net(batch[0]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Model()


def _gpt2() -> Any:
    transformers: Any = import_module("transformers")
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=1024, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)
