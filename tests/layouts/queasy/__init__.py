"""The layout of Queasy."""
