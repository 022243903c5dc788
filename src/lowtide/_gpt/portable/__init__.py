"""Files of an exported model: its modelling code, and its tokenizer for ``transformers``."""
