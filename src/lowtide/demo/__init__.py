"""``lowtide demo``: a tour of lowtide with text and memory that every machine has."""
