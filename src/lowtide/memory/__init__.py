"""See and hold memory."""
