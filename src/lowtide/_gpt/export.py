"""Export: the model of a run as a folder that ``transformers`` loads, with its tokenizer.

A model of GPT-2's architecture is written in GPT-2's format, which many programs read. Any other model is
written with its own modelling file, a copy of ``portable/modeling_lowtide.py``.
"""

from __future__ import annotations

import dataclasses
import os
from importlib import resources
from typing import Any

from lowtide._gpt import folder, gpt2
from lowtide._gpt.folder import Which
from lowtide._gpt.model import ModelConfig
from lowtide._gpt.portable.tokenizer import files_of

MODEL = "modeling_lowtide"
_CLASSES = {"AutoConfig": "LowtideConfig", "AutoModelForCausalLM": "LowtideForCausalLM"}


def export(
    run: str | os.PathLike[str], out: str | os.PathLike[str], *, checkpoint: Which | None = None
) -> list[str]:
    """Write the model of a run as a folder that ``transformers`` loads. It appears when it is complete.

    ``AutoModelForCausalLM.from_pretrained(out)`` loads a model of GPT-2's architecture, such as that of the
    preset ``nanogpt``. Any other model comes with its code, ``modeling_lowtide.py``, and needs
    ``trust_remote_code=True``. Its logits are the same as lowtide's.

    The tokenizer of the run is included, for ``AutoTokenizer.from_pretrained(out)``, unless ``transformers``
    would encode or decode texts differently.

    Parameters
    ----------
    run : path
        The folder of the run, or one of its checkpoints.
    out : path
        A new folder.
    checkpoint : {"best", "last"}, optional
        The weights with the lowest validation loss, or the last ones. [default: the best if the run was
        evaluated, else the last]

    Returns
    -------
    list of str
        The names of the files.

    Examples
    --------
    >>> export("no-such-run", "out")
    Traceback (most recent call last):
    lowtide.errors.NotFoundError: no-such-run/checkpoint.pt: no checkpoint there; pass the folder of a run ...
    """
    model = folder.load_model(run, checkpoint)
    home = folder.folder_of(run)
    files: dict[str, str] = {}
    eos: int | None = None
    if os.path.exists(os.path.join(home, folder.TOKENIZER)):
        tokenizer = folder.load_tokenizer(home)
        files, eos = files_of(tokenizer, model.config.length) or {}, tokenizer.eos
    if not gpt2.unsupported(model.config):
        config = {**gpt2.config_of(model.config), "eos_token_id": eos}
        return gpt2.write(out, config, gpt2.tensors_of(model), files)
    files[f"{MODEL}.py"] = (resources.files("lowtide._gpt") / "portable" / f"{MODEL}.py").read_text("utf-8")
    tensors = model.state_dict()
    if model.config.tied:  # a safetensors file has no shared tensors
        tensors["head.weight"] = tensors["head.weight"].clone()
    return gpt2.write(out, {**_config(model.config), "eos_token_id": eos}, tensors.items(), files)


def _config(config: ModelConfig) -> dict[str, Any]:
    values = dataclasses.asdict(config)
    del values["zero_init"], values["tied"]  # of no effect on trained weights
    return {
        **values,
        "model_type": "lowtide",
        "architectures": [_CLASSES["AutoModelForCausalLM"]],
        "auto_map": {name: f"{MODEL}.{one}" for name, one in _CLASSES.items()},
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "torch_dtype": "float32",
    }
