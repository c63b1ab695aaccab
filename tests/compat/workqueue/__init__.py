"""The layout of Redis Work Queue: its keys, its rows, and its published clients on the same queue."""
