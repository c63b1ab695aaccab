"""Benchmarks: Windlass and its peers on one server in one run; raw queues and bare lists. See README.md."""
