"""Text to tokens: sources, tokenizers, and the run that turns the one into a corpus by the other.

The folder is not called ``prepare``, since ``lowtide.prepare`` is a function: a module of the same name would
shadow it.
"""
