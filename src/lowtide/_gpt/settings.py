"""The settings of a training run: the one source for the command line, the file, the checkpoint and the docs.

The names are nanoGPT's where it has one. A setting that nobody gave comes from the preset, from the kind of
device, or from other settings; ``resolve`` puts them together and says of each where it came from.
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Literal, get_args, get_type_hints

from lowtide._gpt.presets import ARCHITECTURES, OPTIMISERS
from lowtide._io.store import opened
from lowtide._printable import brief
from lowtide._sizes import parse_size
from lowtide.errors import ArgumentError, FormatError, LowtideError

MOST = 2**32 - 1
"""The largest integer: seeds and steps together must fit into PyTorch's 64 bits."""
MAX_FILE = 2**20
"""Bytes of a TOML file that are read."""
COMMAND_LINE = "on the command line"


def _setting(help: str, default: Any = None, *, least: float | None = None, may_change: bool = False) -> Any:
    return field(default=default, metadata={"help": help, "least": least, "may_change": may_change})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run depends on: plain values, complete and free of contradictions. ``resolve`` makes them.

    Those that ``may_change`` may be given anew when a run is resumed; the others make it what it is.
    """

    # What is trained, and on what
    data: str = _setting("The corpus: a folder, a file or a glob.", may_change=True)
    preset: Literal["modern", "nanogpt"] = _setting("What is not set below: architecture and optimiser.")
    init: str | None = _setting(
        "Begin with GPT-2's weights: a folder in Hugging Face's format, or gpt2, gpt2-xl, …"
    )
    # The model
    n_layer: int = _setting("How many layers.", least=1)
    n_head: int = _setting("Attention heads of a layer.", least=1)
    n_embd: int = _setting("Width: features of a token.", least=1)
    block_size: int = _setting("Tokens of a window, the most that the model looks back on.", least=1)
    vocab_size: int | None = _setting("Ids the model knows; from the corpus where it tells.", least=1)
    dropout: float = _setting("Share of features left out while training.", 0.0, least=0)
    bias: bool = _setting("Biases in linear layers and LayerNorm.")
    norm: Literal["layernorm", "rmsnorm"] = _setting("Which normalisation.")
    positions: Literal["learned", "rotary"] = _setting("How the model knows where a token stands.")
    activation: Literal["gelu", "gelu_tanh", "relu2"] = _setting("Between the two feed-forward matrices.")
    qk_norm: bool = _setting("Normalise queries and keys.")
    tied: bool = _setting("Use the embedding as the head.")
    zero_init: bool = _setting("Begin with blocks that do nothing.")
    # The batches
    batch_size: int = _setting("Windows of a micro-batch: what goes through the model at once.", least=1)
    gradient_accumulation_steps: int = _setting("Micro-batches of a step, of all ranks together.", 1, least=1)
    order: Literal["shuffle", "random", "blocks", "sequential", "documents", "packed"] = _setting(
        "In which order windows come; random is nanoGPT's.", "shuffle"
    )
    document_mask: bool = _setting("Let tokens see their own document alone.", False)
    eos: int | None = _setting("The token that ends documents, where the corpus does not say.", least=0)
    seed: int = _setting("The seed of weights, batches and dropout.", 1337, least=0)
    # The optimiser
    optimiser: Literal["adamw", "muon"] = _setting("AdamW, or Muon for matrices and AdamW for the rest.")
    learning_rate: float = _setting("The highest learning rate.", least=0)
    min_lr: float = _setting("The last learning rate; a tenth of the highest unless said.", least=0)
    schedule: Literal["cosine", "wsd"] = _setting("Cosine, or warmup-stable-decay.", "cosine")
    warmup_iters: int = _setting("Steps in which the learning rate rises.", least=0)
    lr_decay_iters: int = _setting("The step at which it reaches min_lr; max_iters unless said.", least=1)
    cooldown_iters: int = _setting("wsd: the steps in which it falls; two fifths unless said.", least=0)
    weight_decay: float = _setting("How much matrices and embeddings shrink.", least=0)
    beta1: float = _setting("AdamW's first moment.", least=0)
    beta2: float = _setting("AdamW's second moment.", least=0)
    grad_clip: float = _setting("The largest norm of the gradient; 0 for any.", least=0)
    # How long, and what is looked at and kept meanwhile
    max_iters: int = _setting("Steps of the run.", least=1, may_change=True)
    max_minutes: float | None = _setting("Save and stop after so many minutes.", least=0, may_change=True)
    eval_interval: int = _setting("Steps between evaluations; 0 for none.", 250, least=0, may_change=True)
    eval_iters: int = _setting(
        "Validation batches of an evaluation, always the same.", least=1, may_change=True
    )
    val_split: str = _setting("The split of the corpus to evaluate on.", "val", may_change=True)
    checkpoint_interval: int = _setting("Steps between checkpoints.", 250, least=1, may_change=True)
    log_interval: int = _setting(
        "Steps between lines where there is no terminal.", 10, least=1, may_change=True
    )
    # The machine
    device: str = _setting("cpu, cuda, cuda:1, mps; the best that is there unless said.", may_change=True)
    dtype: Literal["float32", "bfloat16", "float16"] = _setting(
        "The dtype of matrix products (autocast).", may_change=True
    )
    compile: bool = _setting("Use torch.compile.", False, may_change=True)
    memory_budget: str | None = _setting("Memory of each process, such as 2GiB.", may_change=True)
    over_budget: Literal["stop", "warn"] = _setting("What to do beyond the budget.", "stop", may_change=True)
    wandb: bool = _setting("Log to Weights & Biases too.", False, may_change=True)

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            object.__setattr__(self, name, checked(name, value, "in these settings"))
        _contradictions(self, {})

    def to_json(self) -> dict[str, Any]:
        """Plain values by name."""
        return dataclasses.asdict(self)

    @property
    def global_batch(self) -> int:
        """Windows of a step, of all ranks and micro-batches together."""
        return self.batch_size * self.gradient_accumulation_steps


FIELDS = {one.name: one for one in dataclasses.fields(Settings)}
_TYPES = get_type_hints(Settings)
ARCHITECTURE = (*ARCHITECTURES["nanogpt"], "n_layer", "n_head", "n_embd", "dropout")
"""What a ``ModelConfig`` takes as it stands; vocab_size and block_size beside it."""

# nanoGPT's own recipes for a character model: minutes on a laptop's CPU, minutes on a GPU.
SIZES: dict[str, dict[str, Any]] = {
    "cpu": {
        "n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64, "batch_size": 12, "max_iters": 2000,
        "eval_iters": 20, "dtype": "float32",
    },
    "gpu": {
        "n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256, "batch_size": 64, "max_iters": 5000,
        "eval_iters": 200, "dtype": "bfloat16",
    },
}  # fmt: skip
"""What the device decides, unless said."""


def kind_of(name: str) -> tuple[type, tuple[Any, ...], bool]:
    """A setting's type, its allowed values where they are a choice, and whether it may be left unset."""
    hint = _TYPES[name]
    choices = get_args(hint) if getattr(hint, "__origin__", None) is Literal else ()
    if choices:
        return str, choices, False
    optional = NoneType in get_args(hint)
    plain = next((one for one in get_args(hint) if one is not NoneType), hint)
    return plain, (), optional


def checked(name: str, value: Any, origin: str) -> Any:
    """A value of the right type and range, or an error that says where the wrong one came from."""
    if name not in FIELDS:
        near = difflib.get_close_matches(name, FIELDS, 3, 0.5)
        meant = f"; did you mean {' or '.join(near)}?" if near else f"; known are {', '.join(FIELDS)}"
        raise ArgumentError(f"there is no setting {brief(name)} ({origin}){meant}")
    kind, choices, optional = kind_of(name)
    if value is None and optional:
        return None
    if kind is float and type(value) is int and abs(value) <= MOST:
        value = float(value)
    wanted = f"one of {', '.join(choices)}" if choices else _WORDS[kind]
    fits = type(value) is kind and (not choices or value in choices)
    least = FIELDS[name].metadata["least"]
    if least is not None:
        wanted += f" from {least}"
        if fits and kind is int and value > MOST:
            wanted += f" to {MOST}"
        fits = fits and least <= value <= (MOST if kind is int else sys.float_info.max)
    if name in ("dropout", "beta1", "beta2"):
        wanted += " and below 1"
        fits = fits and value < 1
    if not fits:
        raise ArgumentError(f"{name} must be {wanted}, got {brief(value)} {origin}")
    if name == "memory_budget":
        try:
            too_much = parse_size(value) >= 2**63
        except ValueError as error:
            raise ArgumentError(f"{name}: {brief(str(error))[1:-1]} (got {origin})") from None
        if too_much:
            raise ArgumentError(f"{name} must be below 2**63 bytes, got {brief(value)} {origin}")
    return value


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def read_file(path: str) -> dict[str, Any]:
    """The settings in a TOML file, each checked.

    >>> _ = (tmp / "run.toml").write_text("n_layer = 2\\nlearning_rate = 1e-3\\n")
    >>> read_file(str(tmp / "run.toml"))
    {'n_layer': 2, 'learning_rate': 0.001}
    """
    try:
        with opened(path) as source:
            if source.size > MAX_FILE:
                raise FormatError(
                    f"{path}: too large for settings ({source.size} bytes, expected at most {MAX_FILE}); "
                    "pass a TOML file with lines such as n_layer = 4"
                )
            found = tomllib.loads(source.read(0, source.size, "settings").decode())
    except LowtideError:
        raise
    except (ValueError, RecursionError) as error:  # also of integers with more digits than Python converts
        raise FormatError(
            f"{path}: is not valid TOML ({brief(str(error))[1:-1]}); write lines such as n_layer = 4"
        ) from error
    return {name: checked(name, value, f"in {path}") for name, value in found.items()}


def resolve(
    given: Mapping[str, Any],
    file: str | None = None,
    *,
    base: Settings | None = None,
    weights: Mapping[str, Any] | None = None,
) -> Settings:
    """All settings of a run: ``given`` on the command line wins over the file, that over ``base`` (those of
    the run to be resumed) or else over the preset and what the device decides.

    ``weights`` are the sizes of a model that training begins with: they cannot be set to anything else.

    >>> settings = resolve({"data": "corpus", "device": "cpu", "preset": "nanogpt", "n_layer": 2})
    >>> settings.n_layer, settings.n_embd, settings.norm, settings.lr_decay_iters
    (2, 128, 'layernorm', 2000)
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer, origin in ((read_file(file) if file else {}, f"in {file}"), (given, COMMAND_LINE)):
        for name, value in layer.items():
            values[name] = checked(name, value, origin)
            origins[name] = origin
    if base is not None:
        _refuse_changes(base, values, origins)
        values = {**base.to_json(), **values}
    else:
        for name, value in (weights or {}).items():
            if values.get(name, value) != value:
                raise ArgumentError(
                    f"{name} is {values[name]!r} {origins[name]}, and the weights of --init have {value!r}; "
                    "leave it out"
                )
            values[name] = value
            origins.setdefault(name, "in the weights of --init")
        _fill(values, origins)
    _contradictions(_Loose(values), origins)
    return Settings(**values)


def _fill(values: dict[str, Any], origins: dict[str, str]) -> None:
    """Put in what nobody gave: the preset, then what the device decides, then what follows from the rest."""
    if not values.get("data"):
        raise ArgumentError("data is missing: name a corpus with --data or in the file of --config")
    preset = values.setdefault("preset", "modern")
    device = values.setdefault("device", None) or _best_device()
    values["device"] = device
    for layer, origin in (
        ({**ARCHITECTURES[preset], **OPTIMISERS[preset]}, f"of the preset {preset!r}"),
        (SIZES["cpu" if device.startswith("cpu") else "gpu"], f"for {device}"),
        ({name: one.default for name, one in FIELDS.items() if one.default is not None}, "by default"),
    ):
        for name, value in layer.items():
            if values.get(name) is None:
                values[name] = value
                origins.setdefault(name, origin)
    decay = values.setdefault("lr_decay_iters", values["max_iters"])
    values.setdefault("min_lr", values["learning_rate"] / 10)
    values.setdefault("warmup_iters", min(100, decay // 10))
    values.setdefault("cooldown_iters", decay * 2 // 5)


def _best_device() -> str:
    from lowtide._gpt.model import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _refuse_changes(base: Settings, values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    wrong = [
        f"{name} was {getattr(base, name)!r} and is {value!r} {origins[name]}"
        for name, value in values.items()
        if not FIELDS[name].metadata["may_change"] and value != getattr(base, name)
    ]
    if wrong:
        raise ArgumentError(
            f"the run was begun with other settings: {'; '.join(wrong)}; leave them out to go on with it, "
            f"or begin another run. Only these may change: {', '.join(changeable())}"
        )


def changeable() -> list[str]:
    """The settings that may be given anew when a run is resumed."""
    return [name for name, one in FIELDS.items() if one.metadata["may_change"]]


class _Loose:
    """Settings that are not yet known to agree."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)


def _contradictions(settings: Any, origins: Mapping[str, str]) -> None:
    def said(*names: str) -> str:
        return ", ".join(
            f"{name} = {getattr(settings, name)!r}" + (f" {origins[name]}" if name in origins else "")
            for name in names
        )

    if settings.n_embd % settings.n_head:
        raise ArgumentError(f"n_embd must be a multiple of n_head: {said('n_embd', 'n_head')}")
    if settings.min_lr > settings.learning_rate:
        raise ArgumentError(f"min_lr must not be above learning_rate: {said('min_lr', 'learning_rate')}")
    if settings.warmup_iters > settings.lr_decay_iters:
        raise ArgumentError(
            f"warmup_iters must not be above lr_decay_iters: {said('warmup_iters', 'lr_decay_iters')}"
        )
    if (
        settings.schedule == "wsd"
        and settings.warmup_iters + settings.cooldown_iters > settings.lr_decay_iters
    ):
        names = ("warmup_iters", "cooldown_iters", "lr_decay_iters")
        raise ArgumentError(f"warm-up and cool-down must fit into lr_decay_iters: {said(*names)}")
    if settings.dtype == "float16" and not settings.device.startswith("cuda"):
        raise ArgumentError(
            f"float16 trains on CUDA alone: {said('dtype', 'device')}; use bfloat16 or float32"
        )
