"""Bytes: stores, readers, descriptors, buffers and files that appear when complete."""
