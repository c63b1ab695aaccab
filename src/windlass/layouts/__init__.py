"""The layouts: how a queue lies in the server, and the atomic steps on it."""
