"""Attacks, each against the real system. SECURITY.md says which row each test proves."""
