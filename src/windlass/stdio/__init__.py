"""The service on standard input and output: programs of any language add jobs and work on them by lines of JSON."""

from windlass.stdio.service import serve

__all__ = ["serve"]
