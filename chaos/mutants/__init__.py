"""Bugs on purpose, one line each, to see whether the runs and tests that should find such bugs do.

A test that never failed proves nothing. Each mutant is a copy of Windlass with one line changed; it is caught when one
of the runs (or the test that is named for it) fails on that copy within a minute. One that survives is a hole.
"""
