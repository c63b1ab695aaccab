"""The faults of a chaos run, each a small tool of its own, and the plan that says which of them happen when.

`fault.py` says what a fault is. Each family has a module: `processes`, `network`, `proxying`, `disk`, `server` and
`clock`. `mix.py` draws a plan from a seed and carries it out.
"""
