"""Folders of training runs and of GPT-2, and what the memory meter recorded."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fuzz.harness import Target

if TYPE_CHECKING:
    from lowtide._gpt.checkpoint import Checkpoint
    from lowtide._gpt.config import Settings
    from lowtide._gpt.model import GPT
    from lowtide._gpt.optim import Optimiser

Make = Callable[[Path], None]
Read = Callable[[Path], None]

# torch, matplotlib and vl_convert are imported where they are needed: every process imports this module.


def _several(name: str, *forms: tuple[Make, Read], damaged: str = "**/*", share: float = 1) -> Target:
    """One kind of file in several forms, of which a case damages and reads one: PyTorch starts slowly."""

    def make(folder: Path) -> None:
        for number, (make_one, _) in enumerate(forms):
            (folder / str(number)).mkdir()
            make_one(folder / str(number))

    def read(folder: Path) -> None:
        valid = folder.parent / "valid"
        changed = [
            number for number in range(len(forms)) if _differ(valid / str(number), folder / str(number))
        ]
        for number in changed or range(len(forms)):
            forms[number][1](folder / str(number))

    return Target(name, make, read, damaged=damaged, share=share)


def _differ(valid: Path, folder: Path) -> bool:
    return any(
        not (copy := folder / path.relative_to(valid)).exists() or copy.read_bytes() != path.read_bytes()
        for path in valid.rglob("*")
        if path.is_file()
    )


def _checkpoint() -> Checkpoint:
    """A run after one step: a model of 1 layer, 8 wide, and the state of both its optimisers."""
    import torch

    from lowtide._gpt.checkpoint import Checkpoint
    from lowtide._gpt.loop import model_config
    from lowtide._gpt.model import GPT
    from tests.support.training import tiny

    torch.set_num_threads(1)
    settings = tiny("corpus", vocab_size=5, n_embd=8, length=4)
    model = GPT(model_config(settings))
    optimiser = _optimiser(model, settings)
    ids = torch.tensor([[1, 2, 3]])
    model(ids, ids)[1].backward()
    optimiser.step()
    batches = {"step": 1, "settings": {"batch_size": 4, "length": 4, "corpus": {"tokens": 5000}}}
    return Checkpoint(1, settings, model.config, model.state_dict(), 2.5, optimiser.state_dict(), {}, batches)


def _optimiser(model: GPT, settings: Settings) -> Optimiser:
    from lowtide._gpt import optim

    return optim.make(model, settings)


def _make_checkpoint(folder: Path) -> None:
    _checkpoint().save(str(folder / "checkpoint.pt"))


def _resume(folder: Path) -> None:
    """All that ``lowtide train --resume`` and ``lowtide sample`` do with a checkpoint, without the corpus."""
    import torch

    from lowtide._gpt import checkpoint
    from lowtide._gpt.generate import generate
    from lowtide._gpt.model import GPT

    path = str(folder / "checkpoint.pt")
    saved = checkpoint.load(path)
    model = GPT(saved.config)
    model.load_state_dict(saved.model)
    optimiser = _optimiser(model, saved.settings)
    checkpoint.restore(optimiser, saved, path)
    list(generate(model, [0], max_new_tokens=1, generator=torch.Generator()))
    ids = torch.tensor([[0]])
    model(ids, ids)[1].backward()
    optimiser.step()


def _make_pickle(folder: Path) -> None:
    """The checkpoint's pickle outside the zip, so that it is damaged and no checksum tells."""
    _make_checkpoint(folder)
    with zipfile.ZipFile(folder / "checkpoint.pt") as archive:
        (folder / "data.pkl").write_bytes(archive.read("archive/data.pkl"))
    os.rename(folder / "checkpoint.pt", folder / "rest")


def _resume_pickle(folder: Path) -> None:
    data = (folder / "data.pkl").read_bytes() if (folder / "data.pkl").exists() else b""
    with zipfile.ZipFile(folder / "rest") as rest, zipfile.ZipFile(folder / "checkpoint.pt", "w") as archive:
        for name in rest.namelist():
            archive.writestr(name, data if name == "archive/data.pkl" else rest.read(name))
    _resume(folder)


def _make_values(folder: Path) -> None:
    """The plain values of a checkpoint as JSON, and its tensors beside it."""
    import torch

    _make_checkpoint(folder)
    content = torch.load(folder / "checkpoint.pt", weights_only=True)
    torch.save({name: content.pop(name) for name in ("model", "optimiser")}, folder / "tensors")
    os.unlink(folder / "checkpoint.pt")
    (folder / "values.json").write_text(json.dumps(content))


def _resume_values(folder: Path) -> None:
    import torch

    try:
        values = json.loads((folder / "values.json").read_bytes())
        content = {**torch.load(folder / "tensors", weights_only=True), **values}
        torch.save(content, folder / "checkpoint.pt")
    except (ValueError, RecursionError, TypeError, OSError):
        return  # not a case: the damage is to the JSON itself
    _resume(folder)


def _make_metrics(folder: Path) -> None:
    from lowtide._gpt.metrics import Log, Metrics

    log = Log(str(folder / "metrics.jsonl"), 0)
    for step in range(1, 21):
        loss = 3.0 + 1 / step
        log.add(Metrics(step, loss, None if step % 5 else loss, 1e-3, step * 10, 100.5, 0.1, 10.0, 300.25))
    log.close()


def _read_metrics(folder: Path) -> None:
    """Read all lines, then resume at a step: those after it go, and the next one follows."""
    from lowtide._gpt import metrics

    path = folder / "metrics.jsonl"
    before = [line["step"] for line in metrics.read(path)] if path.exists() else []
    log = metrics.Log(str(path), 12)
    log.add(metrics.Metrics(13, 3.0, None, 1e-3, 130, 100.0, 0.1, 10.0, 300.0))
    log.close()
    after = [line["step"] for line in metrics.read(path)]
    assert after[-1] == 13
    assert all(step <= 12 for step in after[:-1])
    assert after[:-1] == before[: len(after) - 1]


def _draw(folder: Path) -> None:
    from lowtide._gpt import plot

    plot.draw(str(folder / "metrics.jsonl"), str(folder / "training.png"), 2**30)


def _make_settings(folder: Path) -> None:
    from lowtide._gpt.folder import write_settings
    from tests.support.training import tiny

    write_settings(str(folder), tiny("corpus", memory_budget="2GiB"))


def _read_settings(folder: Path) -> None:
    from lowtide._gpt.config import resolve
    from lowtide._gpt.folder import read_settings

    resolve({"max_iters": 5000}, base=read_settings(folder))


def _make_toml(folder: Path) -> None:
    (folder / "run.toml").write_text(
        'data = "corpus"\ndevice = "cpu"\nn_layer = 2\nlearning_rate = 1e-3\nbias = false\n'
        'max_minutes = 2.5\nmemory_budget = "2GiB"\n'
    )


def _read_toml(folder: Path) -> None:
    from lowtide._gpt.config import resolve

    resolve({"data": "corpus", "device": "cpu"}, str(folder / "run.toml"))


def _make_gpt2(folder: Path) -> None:
    import torch

    from lowtide._gpt.gpt2 import to_gpt2
    from lowtide._gpt.model import GPT
    from tests.support.models import config

    torch.set_num_threads(1)
    model = GPT(config("gpt2", vocab_size=5, length=4, n_layer=1, n_embd=8))
    to_gpt2(model, folder / "gpt2")


def _make_sharded_gpt2(folder: Path) -> None:
    _make_gpt2(folder)
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "gpt2" / "model.safetensors")
    os.unlink(folder / "gpt2" / "model.safetensors")
    names = sorted(tensors)
    files = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(names)}
    for file in sorted(set(files.values())):
        save_file({name: tensors[name] for name in names if files[name] == file}, folder / "gpt2" / file)
    index = {"metadata": {"total_size": 1}, "weight_map": files}
    (folder / "gpt2" / "model.safetensors.index.json").write_text(json.dumps(index))


def _read_gpt2(folder: Path) -> None:
    import torch

    from lowtide._gpt.generate import generate
    from lowtide._gpt.gpt2 import from_gpt2

    list(generate(from_gpt2(folder / "gpt2"), [0], max_new_tokens=1, generator=torch.Generator()))


def _make_recording(folder: Path) -> None:
    from lowtide._memory.profile import document
    from lowtide._memory.profile.recording import Detail, Point, Recording

    recording = Recording(["python", "train.py"], 1, 1.7e9, 0.1, budget=2**28, limit=2**30)
    recording.ended, recording.status = 1.7e9 + 2, 0
    for index in range(20):
        size = index << 22
        recording.add(Point(index * 0.1, 0, 1, 2**25, size, 0, size, 2**22, size, index, index))
    detail = (0, (0, 0, 0), (0, 0, 0), {"x.npy": 2**26}, 0, 0, 2**40, 0, {"x.npy": 2**27}, 99, None, None)
    recording.details.add(Detail(1.0, *detail))
    document.save(str(folder / "recording.json"), document.of(recording))


def _make_journal(folder: Path) -> None:
    """An unfinished recording, and the events of a finished one."""
    from lowtide._memory.profile.events import Event
    from lowtide._memory.profile.journal import Journal
    from lowtide._memory.profile.recording import Charges, Point, Recording, Shares

    for finished in (False, True):
        recording = Recording(["python", "train.py"], 1, 1.7e9, 0.1, budget=2**28, limit=2**30)
        journal = Journal(
            recording, str(folder / f"{finished}.recording"), {"/sys/fs/cgroup": {"oom_kill": 1}}
        )
        for index in range(20):
            recording.add(Point(index * 0.1, 0, 1, 2**25, index << 22, 0, 0, 2**22, 0, index, index))
            journal.add(recording.points[-1])
        journal.add(Shares(1.0, 0, 9, (2**25, 2**20, 0), (2**24, 2**20, 0)))
        journal.add(Charges(1.0, 2**26, 2**25, 2**25, 0, 2**20, 0))
        recording.events.append(Event("oom_kill", 1.9, 1.9, "killed", 7))
        if finished:
            recording.ended, recording.status = 1.7e9 + 2, -9
            journal.finish()
        journal.flush()
        journal.close()


def _make_dat(folder: Path) -> None:
    lines = [
        f"MEM {20 + index}.5 {1.7e9 + index / 10:.4f}\nCHLD 7 {index}.0 {1.7e9}\n" for index in range(20)
    ]
    text = "CMDLINE python x.py\n" + "".join(lines) + "FUNC x.step 1.0 1.0 2.0 2.0\n"
    (folder / "recording.dat").write_text(text)


def _report(folder: Path) -> None:
    from lowtide._memory.profile import document, report

    for path in sorted(folder.iterdir()):
        page = report.render(document.load(str(path)))
        data = page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
        assert "NaN" not in data
        assert "Infinity" not in data  # which JavaScript's JSON.parse refuses
        json.loads(data)


TARGETS = [
    _several(
        "checkpoint",
        (_make_checkpoint, _resume),
        (_make_pickle, _resume_pickle),
        (_make_values, _resume_values),
        damaged="**/*.*",
        share=0.3,
    ),
    Target("metrics", _make_metrics, _read_metrics),
    Target("run-picture", _make_metrics, _draw, share=0.01),
    _several("settings", (_make_settings, _read_settings), (_make_toml, _read_toml)),
    _several("gpt2-folder", (_make_gpt2, _read_gpt2), (_make_sharded_gpt2, _read_gpt2), share=0.5),
    Target("recording", _make_recording, _report),
    Target("unfinished", _make_journal, _report),
    Target("dat", _make_dat, _report),
]
