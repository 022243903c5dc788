"""Walks over one file by np.memmap and by each reader, with their speed and memory."""
