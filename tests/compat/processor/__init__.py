"""The layout of Processor Job Queue: its keys, and its rows."""
