"""Walks over one file by np.memmap and by each reader, and what memory did meanwhile."""
