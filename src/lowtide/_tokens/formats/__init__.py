"""Token formats that are read in place."""
