"""The service on standard input and output: programs of any language add and run jobs by JSON lines."""

from windlass.stdio.service import serve

__all__ = ["serve"]
