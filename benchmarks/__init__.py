"""One script a claim; each measures its peers in the same run."""
