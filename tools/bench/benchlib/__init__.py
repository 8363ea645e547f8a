"""What the benchmarks share. Modules that import torch are used in the worker's process alone."""
