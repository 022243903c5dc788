"""Text to tokens: inputs, tokenizers, and the run that turns the former into a corpus with the latter.

The folder is not called ``prepare``, since ``lowtide.prepare`` is a function: a module with the same name
would shadow it.
"""
