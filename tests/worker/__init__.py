"""The parts of a worker, each with real processes."""
