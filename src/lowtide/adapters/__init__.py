"""Where people use lowtide: one small module a framework, imported when asked for."""
