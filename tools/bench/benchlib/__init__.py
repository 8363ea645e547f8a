"""What the benchmarks share. Modules that name torch are imported only in the worker's process; the others need none."""
