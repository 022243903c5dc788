"""What an exported model brings along: its own modelling file, and its tokenizer for ``transformers``."""
