"""Data bigger than memory, read with memory that never rises."""
