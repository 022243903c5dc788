"""The file formats that lowtide reads in place."""
