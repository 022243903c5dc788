"""``lowtide demo``: what lowtide is, shown on the text and the memory that every machine has."""
