"""Objects in buckets and on web servers as stores, read by range requests through obstore."""
