"""Memory line by line."""
