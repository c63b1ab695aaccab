"""The faults of a chaos run, one small tool each, and the plan that schedules them.

`fault.py` defines a fault. Each family has a module: `processes`, `network`, `proxying`, `disk`, `server` and
`clock`. `mix.py` draws a plan from a seed and executes it.
"""
