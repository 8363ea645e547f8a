"""The one error of the benchmarks: shown as a line, without a traceback."""


class BenchError(Exception):
    """A value, a file or a run is wrong; the text names it and says what was expected."""
