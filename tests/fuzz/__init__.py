"""Damaged files for every reader: whatever a file holds, lowtide reads it or raises its own exception."""
