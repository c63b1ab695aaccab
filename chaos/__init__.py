"""Chaos runs: long tests that inject faults and then account for every job."""
