"""The embedded server, always a real one: found, started once, shared, kept safe, stopped."""
