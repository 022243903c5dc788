"""Settings of a training run: the single source for the command line, TOML files, checkpoints and the docs.

Names follow nanoGPT where it has one. A setting that is not given comes from the preset, from the kind of
device, or from other settings; ``resolve`` combines them and records where each came from.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType, SimpleNamespace
from typing import Any, Literal, get_args, get_type_hints

from lowtide._gpt.aliases import block_size_alias, without_alias
from lowtide._gpt.presets import ARCHITECTURES, OPTIMISERS, SIZES
from lowtide._io.store import opened
from lowtide._printable import brief
from lowtide._sizes import parse_size
from lowtide.errors import ArgumentError, FormatError

MOST = 2**32 - 1
"""The largest integer: a seed and a step together must fit into PyTorch's 64 bits."""
MAX_FILE = 2**20
"""Largest TOML file in bytes."""


def _setting(help: str, default: Any = None, *, least: float | None = None, may_change: bool = False) -> Any:
    return field(default=default, metadata={"help": help, "least": least, "may_change": may_change})


@block_size_alias
@dataclass(frozen=True, kw_only=True)
class Settings:
    """Complete and consistent settings of a training run, as plain values.

    ``lowtide.gpt.train`` makes them from its arguments, the preset and the device. Those that ``may_change``
    can be given again when a run is resumed.

    Parameters
    ----------
    """

    # Model and data
    data: str | tuple[str, ...] = _setting(
        "Corpus to train on: a folder, a file, a glob or an address such as s3://bucket/corpus; several "
        "files are one corpus, or a mixture if each is NAME:WEIGHT=PATH.",
        may_change=True,
    )
    val_data: str | None = _setting(
        "Corpus to evaluate on, in place of a split of the data.", may_change=True
    )
    token_dtype: str | None = _setting(
        "NumPy dtype of the tokens, for raw files that do not record it, such as uint16.", may_change=True
    )
    preset: Literal["modern", "nanogpt"] = _setting("Defaults of architecture and optimiser.")
    init: str | None = _setting(
        "Start from the weights of another run (its folder), or GPT-2's: a folder in Hugging Face's format, "
        "or gpt2, gpt2-xl, …"
    )
    n_layer: int = _setting("Number of layers.", least=1)
    n_head: int = _setting("Attention heads per layer.", least=1)
    n_embd: int = _setting("Width of the model: features per token.", least=1)
    length: int = _setting("Tokens per window, and context length of the model.", least=1)
    vocab_size: int | None = _setting("Number of token ids; from the corpus where it is recorded.", least=1)
    dropout: float = _setting("Dropout probability.", 0.0, least=0)
    bias: bool = _setting("Biases in linear layers and LayerNorm.")
    norm: Literal["layernorm", "rmsnorm"] = _setting("Normalization layers.")
    positions: Literal["learned", "rotary"] = _setting("Position encoding.")
    activation: Literal["gelu", "gelu_tanh", "relu2"] = _setting("Activation of the feed-forward network.")
    qk_norm: bool = _setting("Normalize queries and keys.")
    tied: bool = _setting("Share the weights of embedding and output head.")
    zero_init: bool = _setting(
        "Zero-initialise residual projections, so that each block starts as the identity."
    )
    # Batches
    batch_size: int = _setting("Windows per micro-batch, which is one forward pass.", least=1)
    gradient_accumulation_steps: int = _setting("Micro-batches per step, over all ranks.", 1, least=1)
    order: Literal["shuffle", "random", "blocks", "sequential", "documents", "packed"] = _setting(
        "Order of the windows; random is nanoGPT's, and for an address the default is blocks.", "shuffle"
    )
    document_mask: bool = _setting(
        "Attend within the same document only; learned positions restart with each.", False
    )
    border_loss: bool = _setting(
        "Count the loss of the first token of each document, predicted from the one before it.", True
    )
    loss_mask: str | None = _setting(
        "Corpus like the data with 1 for each token whose loss counts and 0 for the others.", may_change=True
    )
    eos: int | None = _setting("Id of the token that ends a document, if the corpus has no record.", least=0)
    seed: int = _setting("Seed of weights, batches and dropout.", 1337, least=0)
    # Optimiser
    optimiser: Literal["adamw", "muon"] = _setting("AdamW, or Muon for matrices and AdamW for the rest.")
    muon_dtype: Literal["bfloat16", "float32"] = _setting(
        "dtype of Muon's products; the faster one on this machine by default.", may_change=True
    )
    learning_rate: float = _setting("Highest learning rate.", least=0)
    min_lr: float = _setting("Final learning rate; a tenth of the highest by default.", least=0)
    schedule: Literal["cosine", "wsd"] = _setting("Learning rate: cosine, or warmup-stable-decay.", "cosine")
    warmup_iters: int = _setting("Steps of linear warmup.", least=0)
    lr_decay_iters: int = _setting("Step at which min_lr is reached; max_iters by default.", least=1)
    cooldown_iters: int = _setting("wsd: steps of the final decay; two fifths by default.", least=0)
    weight_decay: float = _setting("Weight decay of matrices and embeddings.", least=0)
    beta1: float = _setting("AdamW's decay rate of the first moment.", least=0)
    beta2: float = _setting("AdamW's decay rate of the second moment.", least=0)
    grad_clip: float = _setting("Largest norm of the gradient; 0 disables clipping.", least=0)
    # Duration, evaluation, output
    max_iters: int = _setting("Steps of the run.", least=1, may_change=True)
    max_minutes: float | None = _setting("Save and stop after this many minutes.", least=0, may_change=True)
    eval_interval: int = _setting(
        "Steps between evaluations; 0 disables them.", 250, least=0, may_change=True
    )
    eval_iters: int = _setting(
        "Validation batches per evaluation, the same every time.", least=1, may_change=True
    )
    val_split: str = _setting("Split of the corpus to evaluate on.", "val", may_change=True)
    checkpoint_interval: int = _setting("Steps between checkpoints.", 250, least=1, may_change=True)
    log_interval: int = _setting(
        "Steps between lines of output without a terminal.", 10, least=1, may_change=True
    )
    # Machine
    device: str = _setting("cpu, cuda, cuda:1, mps; the best available by default.", may_change=True)
    dtype: Literal["float32", "bfloat16", "float16"] = _setting(
        "dtype of matrix products (autocast).", may_change=True
    )
    compile: bool = _setting("Use torch.compile.", False, may_change=True)
    memory_budget: str | None = _setting("Memory budget per process, such as 2GiB.", may_change=True)
    over_budget: Literal["stop", "warn"] = _setting(
        "Stop or warn when memory exceeds the budget.", "stop", may_change=True
    )
    wandb: bool = _setting("Log to Weights & Biases too.", False, may_change=True)

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            object.__setattr__(self, name, validate(name, value))
        _check_consistency(self, {})

    def to_json(self) -> dict[str, Any]:
        """Plain values by name."""
        values = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @property
    def global_batch(self) -> int:
        """Windows per step, over all ranks and micro-batches."""
        return self.batch_size * self.gradient_accumulation_steps


FIELDS = {one.name: one for one in dataclasses.fields(Settings)}
_TYPES = get_type_hints(Settings)
Settings.__doc__ = f"{Settings.__doc__}" + "".join(
    f"{name} : {one.type}\n        {one.metadata['help']}\n    " for name, one in FIELDS.items()
)


def type_of(name: str) -> tuple[type, tuple[Any, ...], bool]:
    """A setting's type, its choices if it has any, and whether it may be None."""
    hint = _TYPES[name]
    if getattr(hint, "__origin__", None) is Literal:
        return str, get_args(hint), False
    plain = next((one for one in get_args(hint) if one is not NoneType), hint)
    return plain, (), NoneType in get_args(hint)


_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}


def validate(name: str, value: Any, origin: str = "") -> Any:
    """Return ``value`` if its type and range are valid; ``origin``, as " in run.toml", is for messages."""
    if name not in FIELDS:
        near = difflib.get_close_matches(name, FIELDS, 3, 0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(FIELDS)}"
        raise ArgumentError(f"there is no setting {brief(name)}{origin}; {hint}")
    kind, choices, optional = type_of(name)
    if value is None and optional:
        return None
    if name == "data" and isinstance(value, list | tuple) and {*map(type, value)} == {str}:
        return tuple(value) if len(value) > 1 else value[0]
    if kind is float and type(value) is int and abs(value) <= MOST:
        value = float(value)
    expected = f"one of {', '.join(choices)}" if choices else _WORDS[kind]
    fits = type(value) is kind and (not choices or value in choices)
    least = FIELDS[name].metadata["least"]
    if least is not None:
        expected += f" >= {least}"
        if fits and kind is int and value > MOST:
            expected += f" and <= {MOST}"
        fits = fits and least <= value <= (MOST if kind is int else sys.float_info.max)
    if name in ("dropout", "beta1", "beta2"):
        expected += " and < 1"
        fits = fits and value < 1
    if not fits:
        raise ArgumentError(f"{name} must be {expected}, got {brief(value)}{origin}")
    if name == "memory_budget":
        try:
            too_large = parse_size(value) >= 2**63
        except ValueError as error:
            raise ArgumentError(f"{name}: {brief(str(error))[1:-1]}{origin}") from None
        if too_large:
            raise ArgumentError(f"{name} must be below 2**63 bytes, got {brief(value)}{origin}")
    return value


def read_file(path: str) -> dict[str, Any]:
    """Read settings from a TOML file, or from the ``settings.json`` of a run, and validate each.

    >>> _ = (tmp / "run.toml").write_text("n_layer = 2\\nlearning_rate = 1e-3\\n")
    >>> read_file(str(tmp / "run.toml"))
    {'n_layer': 2, 'learning_rate': 0.001}
    """
    form = "JSON" if path.endswith(".json") else "TOML"
    with opened(path) as source:
        if source.size > MAX_FILE:
            raise FormatError(
                f"{path}: too large for settings ({source.size} bytes, expected at most {MAX_FILE}); "
                "pass a TOML file with lines such as n_layer = 4"
            )
        content = source.read(0, source.size, "settings")
    try:
        text = content.decode()
        values: object = json.loads(text) if form == "JSON" else tomllib.loads(text)
        if not isinstance(values, dict):
            raise ValueError(f"found {brief(values)}, expected an object")
    except (ValueError, RecursionError) as error:  # also integers with more digits than Python converts
        raise FormatError(
            f"{path}: is not valid {form} ({brief(str(error))[1:-1]}); write lines such as n_layer = 4"
        ) from error
    values = without_alias(values, f"{path}: block_size")
    return {name: validate(name, one, f" in {path}") for name, one in values.items() if one is not None}


def resolve(
    given: Mapping[str, Any],
    file: str | None = None,
    *,
    base: Settings | None = None,
    weights: Mapping[str, Any] | None = None,
) -> Settings:
    """Combine all settings of a run.

    ``given`` overrides the TOML ``file``, which overrides ``base`` (the settings of the run to resume) or
    else the preset and the defaults of the device. ``weights`` are the sizes of a model to start from: they
    cannot be set to anything else.

    >>> settings = resolve({"data": "corpus", "device": "cpu", "preset": "nanogpt", "n_layer": 2})
    >>> settings.n_layer, settings.n_embd, settings.norm, settings.lr_decay_iters
    (2, 128, 'layernorm', 2000)
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer, origin in ((read_file(file) if file else {}, f" in {file}"), (given, "")):
        for name, value in layer.items():
            values[name] = validate(name, value, origin)
            origins[name] = origin
    if base is not None:
        _refuse_changes(base, values, origins)
        values = {**base.to_json(), **values}
    else:
        for name, value in (weights or {}).items():
            if values.get(name, value) != value:
                raise ArgumentError(
                    f"{name} is {values[name]!r}{origins[name]}, but the weights of --init have {value!r}; "
                    "leave it out"
                )
            values[name] = value
            origins.setdefault(name, " in the weights of --init")
        _fill(values, origins)
    _check_consistency(SimpleNamespace(**values), origins)
    return Settings(**values)


def _fill(values: dict[str, Any], origins: dict[str, str]) -> None:
    """Add the settings that are missing: from the preset, then the device, then other settings."""
    if not values.get("data"):
        raise ArgumentError("data is missing; pass a corpus with --data or in the file of --config")
    data = [values["data"]] if isinstance(values["data"], str) else values["data"]
    if values.get("order") is None and any("://" in entry for entry in data):
        values["order"], origins["order"] = "blocks", " for an address"  # a request per window is slow
    preset = values.setdefault("preset", "modern")
    device = values["device"] = values.get("device") or _best_device()
    for layer, origin in (
        ({**ARCHITECTURES[preset], **OPTIMISERS[preset]}, f" of the preset {preset!r}"),
        (SIZES["cpu" if device.startswith("cpu") else "gpu"], f" for {device}"),
        ({name: one.default for name, one in FIELDS.items() if one.default is not None}, " by default"),
    ):
        for name, value in layer.items():
            if values.get(name) is None:
                values[name] = value
                origins.setdefault(name, origin)
    if values.get("muon_dtype") is None:
        values["muon_dtype"] = "float32"
        if values["optimiser"] == "muon":
            from lowtide._gpt.optim import fastest_dtype

            values["muon_dtype"] = fastest_dtype(device)
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
    changes = [
        f"{name} was {getattr(base, name)!r} and is {value!r}{origins[name]}"
        for name, value in values.items()
        if not FIELDS[name].metadata["may_change"] and value != getattr(base, name)
    ]
    if changes:
        raise ArgumentError(
            f"the run was started with other settings: {'; '.join(changes)}; leave them out to resume it, "
            f"or start another run. Only these may change: {', '.join(changeable())}"
        )


def changeable() -> list[str]:
    """The settings that can be given again when a run is resumed."""
    return [name for name, one in FIELDS.items() if one.metadata["may_change"]]


def _check_consistency(settings: Any, origins: Mapping[str, str]) -> None:
    """Refuse settings that contradict each other; ``origins`` says where each came from."""
    warmup, decay = settings.warmup_iters, settings.lr_decay_iters
    cooldown = settings.cooldown_iters if settings.schedule == "wsd" else 0
    half_off_gpu = settings.dtype == "float16" and not settings.device.startswith("cuda")
    high = settings.min_lr > settings.learning_rate
    rules = (
        ("n_embd n_head", settings.n_embd % settings.n_head, "n_embd must be a multiple of n_head"),
        ("min_lr learning_rate", high, "min_lr must not exceed learning_rate"),
        ("warmup_iters lr_decay_iters", warmup > decay, "warmup_iters must not exceed lr_decay_iters"),
        (
            "warmup_iters cooldown_iters lr_decay_iters", warmup + cooldown > decay,
            "warmup and cooldown must fit into lr_decay_iters",
        ),
        ("dtype device", half_off_gpu, "float16 needs CUDA (use bfloat16 or float32)"),
    )  # fmt: skip
    for names, broken, rule in rules:
        if broken:
            values = (f"{one} = {getattr(settings, one)!r}{origins.get(one, '')}" for one in names.split())
            raise ArgumentError(f"{rule}, got {', '.join(values)}")
