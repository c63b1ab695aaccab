"""Longer runs of the proofs."""
