"""What every layout must do, written once: through the public face alone, blocking and awaitable.

Read in order: enqueue, lease, settle, schedule, upsert, singleton, recovery, cancel, inspect, pause_purge_clean.
"""
