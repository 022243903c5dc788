"""Rows: array files, indexing, passes in any order, and writing."""
