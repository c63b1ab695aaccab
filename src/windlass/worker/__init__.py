"""The worker: the supervisor, the forkserver that it starts, and the runner and children that the forkserver forks."""
