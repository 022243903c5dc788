"""GPT-2's weights in the format of Hugging Face: ``config.json`` and ``model.safetensors``, in and out."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lowtide import errors
from lowtide._extras import library
from lowtide._gpt.model import GPT, ModelConfig, skeleton, torch
from lowtide._gpt.presets import ARCHITECTURES
from lowtide._io import jsonfiles
from lowtide._io.atomic import new_folder
from lowtide._io.store import opened
from lowtide._printable import brief
from lowtide.errors import ArgumentError, FormatError, ReadError, UnsupportedError

_MAX_JSON = 16 * 2**20  # bytes of config.json and of the index, which has a line per tensor
_SUFFIX = ".safetensors"
_DTYPES = ("F64", "F32", "F16", "BF16")
# GPT-2's names and ours. The matrices of its blocks are transposed.
_OUTSIDE = {"wte": "embedding", "wpe": "positions", "ln_f": "norm"}
_INSIDE = {
    "ln_1": "attention_norm",
    "attn.c_attn": "attention.qkv",
    "attn.c_proj": "attention.out",
    "ln_2": "feed_forward_norm",
    "mlp.c_fc": "feed_forward.up",
    "mlp.c_proj": "feed_forward.down",
}
_EMBEDDINGS = ("wte", "wpe")  # they have no biases
_SIZES = ("vocab_size", "n_layer", "n_head", "n_embd")
_ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
# Options of GPT-2's configuration that this model does not have, and the values that it supports.
_FIXED = {
    "model_type": "gpt2",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}


def from_gpt2(source: str | os.PathLike[str], *, dropout: float = 0.0) -> GPT:
    """Load a GPT-2 in the format of Hugging Face, in ``eval()`` mode on the CPU.

    Parameters
    ----------
    source : path or str
        A folder that ``save_pretrained`` wrote, or the name of a model on the Hugging Face Hub (the local
        cache is searched first). Only safetensors files are read.
    dropout : float
        Dropout probability for further training.

    Examples
    --------
    >>> from_gpt2("./no-such-folder")
    Traceback (most recent call last):
    lowtide.errors.NotFoundError: ./no-such-folder: no such folder; pass that of a run, one that ...
    """
    folder = os.fspath(source)
    if not os.path.isdir(folder):
        folder = _download(folder)
    config = _config(os.path.join(folder, "config.json"), dropout)
    files = _files(folder)
    _check(folder, files, config)
    model = GPT(config)
    parameters, names = dict(model.named_parameters()), _names(config)
    with torch.no_grad():
        for path in files:
            for name, part in _tensors(path):
                ours, transposed = names.get(name.removeprefix("transformer."), ("", False))
                if ours:  # or it is a second copy of the embedding
                    parameters[ours].copy_(part[:].T if transposed else part[:])
    return model.eval()


def _check(folder: str, files: list[str], config: ModelConfig) -> None:
    """Refuse tensors that do not match the configuration, by the files' headers, before allocating memory."""
    shapes = [(path, name, _shape(path, name, part)) for path in files for name, part in _tensors(path)]
    numbers = sum(math.prod(shape) for _, _, shape in shapes)
    model = skeleton(config, len(shapes), numbers, os.path.join(folder, "config.json"))
    missing, names = dict(model.named_parameters()), _names(config)
    for path, name, shape in shapes:
        if name == "lm_head.weight" and config.tied:
            continue
        ours, transposed = names.get(name.removeprefix("transformer."), ("", False))
        if ours not in missing:
            raise FormatError(
                f"{path}: has {brief(name)[1:-1]} twice, or it is not part of the GPT-2 of config.json; get "
                "the folder again"
            )
        expected = tuple(missing.pop(ours).shape)
        if (shape[::-1] if transposed else shape) != expected:
            raise FormatError(
                f"{path}: {name} does not match config.json (shape {shape}, expected "
                f"{expected[::-1] if transposed else expected}); get the folder again"
            )
    if missing:
        raise FormatError(
            f"{folder}: lacks {len(missing)} of the model's tensors, such as {min(missing)}; get the folder "
            "again"
        )


def to_gpt2(model: GPT, folder: str | os.PathLike[str]) -> None:
    """Write a model as a folder that ``transformers`` loads as a GPT-2. It appears when it is complete.

    Parameters
    ----------
    model : GPT
        A model of GPT-2's architecture: preset ``nanogpt``, or one that started from GPT-2's weights.
    folder : path
        A new folder, for ``config.json`` and ``model.safetensors``.

    Examples
    --------
    >>> import torch
    >>> from lowtide.gpt import ARCHITECTURES, ModelConfig
    >>> sizes = {"vocab_size": 65, "length": 16, "n_layer": 1, "n_head": 1, "n_embd": 8}
    >>> to_gpt2(GPT(ModelConfig(**sizes, dropout=0.0, **ARCHITECTURES["nanogpt"])), tmp / "gpt2")
    >>> from_gpt2(tmp / "gpt2").config.length
    16
    """
    if parts := unsupported(model.config):
        raise UnsupportedError(
            f"GPT-2's format has no {', '.join(parts)}; train with --preset nanogpt, or use "
            "lowtide.gpt.export, which adds a modelling file"
        )
    write(folder, config_of(model.config), tensors_of(model), {})


def write(
    folder: str | os.PathLike[str],
    config: Mapping[str, Any],
    tensors: Iterable[tuple[str, torch.Tensor]],
    files: Mapping[str, str],
) -> list[str]:
    """Write a folder for ``transformers``, which appears when it is complete; return its files' names."""
    save_file = library("safetensors.torch", "exporting a model", "gpt").save_file
    target = os.path.realpath(folder)  # a link may lead to a larger disk
    if os.path.exists(target) and (not os.path.isdir(target) or os.listdir(target)):
        raise ArgumentError(f"{target}: already exists; pass a new folder")
    texts = {"config.json": json.dumps(config, indent=1), **files}
    with new_folder(target) as partial:
        save_file(dict(tensors), os.path.join(partial, "model.safetensors"), metadata={"format": "pt"})
        for name, text in texts.items():
            with open(os.path.join(partial, name), "w", encoding="utf-8") as file:
                file.write(text)
    return sorted(["model.safetensors", *texts])


def _config(path: str, dropout: float) -> ModelConfig:
    record = jsonfiles.load(path, limit=_MAX_JSON, what="configuration of a GPT-2")
    values = record if isinstance(record, dict) else {}
    if missing := [name for name in (*_SIZES, "n_positions") if type(values.get(name)) is not int]:
        raise FormatError(
            f"{path}: is not a configuration of a GPT-2 (no integer for {', '.join(missing)}); pass a "
            "folder that save_pretrained() wrote"
        )
    sizes = {name: values[name] for name in _SIZES}
    for name, expected in {**_FIXED, "n_inner": 4 * sizes["n_embd"]}.items():
        if (value := values.get(name)) not in (None, expected):
            raise UnsupportedError(
                f"{path}: {name} is not supported ({brief(value)}, expected {expected!r}); use a GPT-2"
            )
    activation = values.get("activation_function", "gelu_new")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise UnsupportedError(
            f"{path}: activation_function is not supported ({brief(activation)}, expected one of "
            f"{', '.join(_ACTIVATIONS)}); use a GPT-2"
        )
    architecture = {**ARCHITECTURES["nanogpt"], "bias": True, "activation": _ACTIVATIONS[activation]}
    architecture["tied"] = values.get("tie_word_embeddings", True)
    try:
        return ModelConfig(**sizes, length=values["n_positions"], dropout=dropout, **architecture)
    except ArgumentError as error:
        raise FormatError(
            f"{path}: is not a configuration of a GPT-2 ({brief(str(error))[1:-1]}); get the folder again"
        ) from error


def unsupported(config: ModelConfig) -> list[str]:
    """The parts of an architecture that GPT-2's format cannot express."""
    supported = {
        "norm": ("layernorm",),
        "positions": ("learned",),
        "activation": ("gelu", "gelu_tanh"),
        "qk_norm": (False,),
    }
    values = {name: getattr(config, name) for name in supported}
    return [f"{name} {value!r}" for name, value in values.items() if value not in supported[name]]


def config_of(config: ModelConfig) -> dict[str, Any]:
    """The content of ``config.json`` for a model of GPT-2's architecture."""
    return {
        **_FIXED,
        "architectures": ["GPT2LMHeadModel"],
        **{name: getattr(config, name) for name in _SIZES},
        "n_positions": config.length,
        "activation_function": "gelu" if config.activation == "gelu" else "gelu_new",
        "tie_word_embeddings": config.tied,
        **dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), config.dropout),
        # The default of transformers is 50256, the end of text in GPT-2's vocabulary.
        "bos_token_id": None,
        "eos_token_id": None,
        "torch_dtype": "float32",
    }


def tensors_of(model: GPT) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights under GPT-2's names. Its blocks always have biases: zeros if the model has none."""
    weights = model.state_dict()
    for name, (ours, transposed) in _names(model.config).items():
        if ours not in weights:
            like = weights[ours.removesuffix("bias") + "weight"]
            weights[ours] = like.new_zeros(len(like))
        tensor = weights[ours].T if transposed else weights[ours]
        yield name if ours == "head.weight" else f"transformer.{name}", tensor.cpu().contiguous()


def _names(config: ModelConfig) -> dict[str, tuple[str, bool]]:
    """For each of GPT-2's tensors our name for it, and whether it is transposed."""
    modules = dict(_OUTSIDE)
    for number in range(config.n_layer):
        modules |= {f"h.{number}.{name}": f"blocks.{number}.{ours}" for name, ours in _INSIDE.items()}
    names = {f"{name}.weight": (f"{ours}.weight", ".c_" in name) for name, ours in modules.items()}
    names |= {
        f"{name}.bias": (f"{ours}.bias", False) for name, ours in modules.items() if name not in _EMBEDDINGS
    }
    return names if config.tied else {**names, "lm_head.weight": ("head.weight", False)}


def _files(folder: str) -> list[str]:
    """The file of the weights, or those that an index lists."""
    whole = os.path.join(folder, "model.safetensors")
    if os.path.exists(whole):
        return [whole]
    index = os.path.join(folder, "model.safetensors.index.json")
    if not os.path.exists(index):
        raise FormatError(
            f"{folder}: has no model.safetensors; load it with transformers and save_pretrained() it again"
        )
    content = jsonfiles.load(index, limit=_MAX_JSON, what="index of weights")
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not names:
        raise FormatError(f"{index}: is not an index of weights (no weight_map); get the folder again")
    files = set(map(str, names.values()))
    # Nothing outside the folder is read, and only weights.
    if strange := [name for name in files if os.path.basename(name) != name or not name.endswith(_SUFFIX)]:
        raise FormatError(
            f"{index}: lists files outside its folder or of another kind ({brief(min(strange))}, expected "
            f"{_SUFFIX} files); get the folder again"
        )
    return [os.path.join(folder, name) for name in sorted(files)]


def _shape(path: str, name: str, part: Any) -> tuple[int, ...]:
    if part.get_dtype() not in _DTYPES:
        raise UnsupportedError(
            f"{path}: {name} has an unsupported dtype ({part.get_dtype()}, expected one of "
            f"{', '.join(_DTYPES)}); save the model as float32"
        )
    return tuple(part.get_shape())


def _tensors(path: str) -> Iterator[tuple[str, Any]]:
    """The tensors of a safetensors file by name, as slices: nothing is read before ``part[:]``."""
    safetensors = library("safetensors", f"{path}: reading it", "gpt")
    with opened(path):  # a regular file that can be read
        pass
    try:
        with safetensors.safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is not a dict
                # Early versions of transformers saved their masks too.
                if not name.endswith((".attn.bias", ".attn.masked_bias")):
                    yield name, file.get_slice(name)
    except safetensors.SafetensorError as error:
        raise FormatError(
            f"{path}: is not a complete safetensors file ({brief(str(error))[1:-1]}); get it again"
        ) from error
    except OSError as error:
        raise errors.reading(path, error) from error


def _download(name: str) -> str:
    """The folder of a model of the Hub, from the local cache if it is there."""
    hub = library("huggingface_hub", f"{name}: a model of the Hub", "gpt")
    if os.path.exists(name):
        raise errors.reading(name, NotADirectoryError(errno.ENOTDIR, ""))
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise errors.missing(
            name,
            "no such folder; pass that of a run, one that save_pretrained() wrote, or the name of a model",
        )
    patterns = ["config.json", "model*.safetensors", "model.safetensors.index.json"]
    try:
        return str(hub.snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # the network can fail in many ways
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ReadError(
            errno.ENOENT,
            f"not a folder, and not available from the Hugging Face Hub ({reason}); pass the folder of a "
            f"run, or run `hf download {name} --local-dir FOLDER` where there is a network and pass that",
            name,
        ) from error
