"""A small GPT on lowtide's loader: model, training, sampling."""
