"""Training in processes with different settings."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lowtide._prepare.tokenizers import Texts
from lowtide._prepare.tokenizers.huggingface import BpeTokenizer, HuggingFaceTokenizer

SAMPLE = ["the tide is low, the moon is full: the sea went out", "low tide\n\nhigh tide 12:30 "] * 20


@pytest.fixture(scope="module")
def bpe() -> HuggingFaceTokenizer:
    return BpeTokenizer.create("bpe:280", Texts(SAMPLE))


def test_training_does_not_depend_on_parallelism(bpe: HuggingFaceTokenizer) -> None:
    program = (
        "from lowtide._prepare.tokenizers import Texts, make\n"
        "from tests.process.prepare.tokenizers.test_huggingface import SAMPLE\n"
        "print(make('bpe:280', Texts(iter(SAMPLE))).to_json())"
    )
    for parallel in ("true", "false"):
        environment = {"TOKENIZERS_PARALLELISM": parallel, "PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == bpe.to_json().strip()
