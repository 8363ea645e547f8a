"""The programs, by topic; importing this registers them."""

from . import blocks, history, pools_and_graphs, processes, statistics, virtuals  # noqa: F401
