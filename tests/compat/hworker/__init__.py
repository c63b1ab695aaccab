"""hworker's keys: what Windlass writes there, what it makes of what others wrote, and both side by side."""
