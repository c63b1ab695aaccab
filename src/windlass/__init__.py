"""Windlass: a job queue on Redis or Valkey that does not let a job slip."""

__version__ = "0.1.0"
