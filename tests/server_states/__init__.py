"""Servers that are too old, full, silent, loading, forgetful or gone: what a caller is told, and what goes on."""
