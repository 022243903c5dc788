"""What a demo could have shown, made up."""

from __future__ import annotations

from typing import Any

from lowtide._compare.runs import Run
from lowtide._prepare.summary import Summary
from lowtide._tokens.formats import own
from lowtide.demo.page import Story
from lowtide.demo.sources import Texts
from lowtide.demo.training import Training

MIB = 2**20
NASTY = "</pre><script>alert(1)</script><img src=x onerror=alert(2)> & {{machine}} \x0c é"


def walk(method: str, shuffled: bool, peak: int, seconds: float) -> Run:
    samples = [(read * MIB, min(peak, read * MIB)) for read in range(0, 513, 8)]
    return Run(
        method,
        shuffled,
        cold=False,
        figures={
            "bytes_read": 512 * MIB,
            "seconds": seconds,
            "complete": True,
            "peak": peak,
            "samples": samples,
        },
        page_cache_left=None,
    )


def metrics(steps: int) -> list[dict[str, Any]]:
    return [
        {
            "step": step, "train_loss": 7 / step + 3, "val_loss": 3.5 if step % 50 == 0 else None, "lr": 1e-3,
            "tokens": step * 1024, "tokens_per_s": 2e4, "loader_ms": 0.1, "step_ms": 50.0, "rss_mib": 412.5,
        }
        for step in range(1, steps + 1)
    ]  # fmt: skip


def story(*, trained: bool = True) -> Story:
    manifest = own.Manifest(
        dtype="uint16", splits={}, tokenizer=own.Tokenizer("bpe:<1024>", "0" * 64, "t.json")
    )
    return Story(
        started=1.7e9,
        texts=Texts("demo/text", 606, 10 * MIB),
        corpus=Summary("demo/corpus", manifest, 3_671_857, 606, [], []),
        corpus_seconds=2.5,
        array_size=512 * MIB,
        walks=[
            walk("np.memmap", False, 512 * MIB, 0.5),
            walk("pread", False, 4 * MIB, 0.25),
            walk("np.memmap", True, 514 * MIB, 0.4),
            walk("pread", True, 5 * MIB, 0.8),
        ],
        training=Training(metrics(700), 51.0) if trained else None,
        sample=NASTY + "x" * 500 if trained else None,
        commands=[
            ("Text to <tokens>", "lowtide prepare 'de<mo>' && echo \"{{when}}\"" + " --long-option" * 20)
        ],
    )
