"""Windows of tokens: corpora, orders, batches and mixtures."""
