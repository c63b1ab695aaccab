"""Deliberate one-line bugs, to check that runs and tests find such bugs.

A test that never failed proves nothing. Each mutant is a copy of Windlass with one line changed; it is caught if one of
the runs, or the test named for it, fails on that copy within a minute. A surviving mutant is a gap in the tests.
"""
