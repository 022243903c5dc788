"""docs/loaders.md: the recipes run as they stand."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.adapters.test_trainers import need

GUIDE = Path(__file__).parents[2] / "docs" / "loaders.md"


@need("lightning", "transformers", "accelerate")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata 0.11, PyTorch 2.13
@pytest.mark.filterwarnings(
    "ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"
)  # Lightning
@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers:UserWarning")
def test_the_recipes_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after another, as a reader would type them; those for nanoGPT and JAX are no ```python."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "owt").mkdir(parents=True)
    np.random.default_rng(0).integers(0, 64, 200_000, np.uint16).tofile("data/owt/train.bin")
    names: dict[str, Any] = {
        "model": lambda x, y: (x + y).sum(),
        "lightning_model": _lightning_model(),
        "gpt2": _gpt2(),
    }
    recipes = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(recipes) == 8
    for recipe in recipes:
        exec(compile(recipe, str(GUIDE), "exec"), names)  # the guide's own words
    assert names["x"].shape == (64, 1024)


def _lightning_model() -> Any:
    lightning: Any = import_module("lightning")

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Embedding(64, 1)

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            mean: torch.Tensor = self.net(batch[0]).mean()
            return mean

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Model()


def _gpt2() -> Any:
    transformers: Any = import_module("transformers")
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=1024, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)
