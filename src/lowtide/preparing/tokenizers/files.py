"""The names that lowtide's own tokenizer files begin with."""

from __future__ import annotations

FORMAT = "lowtide tokenizer"
VERSION = 1
