"""Windlass beside its peers on the same server, in the same run; and raw queues beside bare lists. See README.md."""
