"""The worker: the keeper, the nursery that it starts, and the runner and children that the nursery forks."""
