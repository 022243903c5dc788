"""lowtide beside its peers: the same work, in the same run, each in its own process.

``python -m benchmarks.peers`` prints one table for token batches and one for rows of a matrix. Each row is
one function, in ``tokens`` or ``rows``; ``work`` says what is asked of it, ``worker`` runs it, ``measure``
asks.
"""
