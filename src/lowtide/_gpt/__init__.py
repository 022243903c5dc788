"""The model and its training."""
