"""A run's tokenizer as the files that ``transformers`` loads: ``tokenizer.json`` and its settings."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from lowtide._extras import library
from lowtide._prepare.tokenizers import Tokenizer
from lowtide._prepare.tokenizers.kind import FORMAT

_END = "<|endoftext|>"
_PROBE = "The low tide\n\tleaves: 12 shells, é 潮 🌊!  "


def files_of(tokenizer: Tokenizer, length: int) -> dict[str, str] | None:
    """Their contents by name; None if ``transformers`` would encode or decode texts differently."""
    record = json.loads(tokenizer.to_json())
    portable = _converted(record) if record.get("format") == FORMAT else record
    theirs = library("tokenizers", "exporting a tokenizer", "gpt").Tokenizer.from_str(json.dumps(portable))
    if not _agree(tokenizer, theirs):
        return None
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": length,
        "clean_up_tokenization_spaces": False,
        "eos_token": None if tokenizer.eos is None else theirs.id_to_token(tokenizer.eos),
    }
    return {
        "tokenizer.json": json.dumps(portable, ensure_ascii=False) + "\n",
        "tokenizer_config.json": json.dumps(settings, indent=1) + "\n",
    }


def _agree(tokenizer: Tokenizer, theirs: Any) -> bool:
    """Whether both give the same ids and text, for characters that the tokenizer knows."""
    characters = getattr(tokenizer, "characters", _PROBE)
    text = "".join(one for one in _PROBE if one in characters) + characters[:1000]
    (ids,) = tokenizer.encode_batch([text])
    same: bool = theirs.encode(text, add_special_tokens=False).ids == ids.tolist()
    return same and theirs.decode(ids.tolist()) == tokenizer.decode(ids)


def _converted(record: Mapping[str, Any]) -> dict[str, Any]:
    """lowtide's own file as one of the library ``tokenizers``."""
    if record["kind"] == "char":
        # Every character is a word; unknown ones are an error, as in lowtide.
        vocabulary = {one: id for id, one in enumerate(record["characters"])}
        words = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "\N{REPLACEMENT CHARACTER}" * 2}
        split = {"type": "Split", "pattern": {"Regex": r"(?m)."}, "behavior": "Isolated", "invert": False}
        return _file(words, split, {"type": "Fuse"}, {})
    alphabet = _alphabet()
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    if record["kind"] == "byte":
        vocabulary = {alphabet[byte]: byte for byte in range(256)}
        return _file({"type": "BPE", "vocab": vocabulary, "merges": []}, level, level, {_END: 256})
    ranks = {base64.b64decode(token): rank for token, rank in record["ranks"].items()}

    def spelled(token: bytes) -> str:
        return "".join(alphabet[byte] for byte in token)

    vocabulary = {spelled(token): rank for token, rank in ranks.items()}
    long = sorted((token for token in ranks if len(token) > 1), key=ranks.__getitem__)
    halves = [_halves(token, ranks) for token in long]
    # Words that are tokens are taken as they are, as tiktoken does, whether merges lead there or not.
    merges = [[spelled(part) for part in parts] for parts in halves if all(one in ranks for one in parts)]
    pattern = {"Regex": record["pattern"]}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    both = {"type": "Sequence", "pretokenizers": [split, level]}
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": True}
    return _file(model, both, level, record["special"])


def _file(model: Any, pre_tokenizer: Any, decoder: Any, special: Mapping[str, int]) -> dict[str, Any]:
    # Special tokens in the vocabulary too: else the library numbers them without holes.
    model = {**model, "vocab": {**model["vocab"], **special}}
    options = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": id, "content": name, **options} for name, id in special.items()],
        "pre_tokenizer": pre_tokenizer,
        "decoder": decoder,
        "model": model,
    }


def _alphabet() -> dict[int, str]:
    """GPT-2's character for each byte: itself if it can be printed, else one from 256 on.

    >>> _alphabet()[ord("a")], _alphabet()[ord(" ")]
    ('a', 'Ġ')
    """
    printed = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printed]
    return {**{byte: chr(byte) for byte in printed}, **{b: chr(256 + n) for n, b in enumerate(others)}}


def _halves(token: bytes, ranks: Mapping[bytes, int]) -> list[bytes]:
    """The two tokens that were merged to this one: tiktoken keeps ranks, and no merges.

    >>> _halves(b"the", {b"t": 0, b"h": 1, b"e": 2, b"th": 3, b"the": 4})
    [b'th', b'e']
    """
    parts = [token[n : n + 1] for n in range(len(token))]
    while len(parts) > 2:
        pairs = [ranks.get(parts[n] + parts[n + 1], 2**63) for n in range(len(parts) - 1)]
        first = pairs.index(min(pairs))
        parts[first : first + 2] = [parts[first] + parts[first + 1]]
    return parts
