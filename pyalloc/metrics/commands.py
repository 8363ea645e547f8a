"""`pyalloc exporter`: serves what every process of the host says of its memory. Loads neither torch nor the core.

Exit codes: 0 ended by SIGINT or SIGTERM; 1 it cannot serve; 2 a wrong command line.
"""

from __future__ import annotations

import argparse
import signal
import sys
from typing import Any

from .. import errors
from . import DEFAULT_PORT, _need_client

_EXAMPLES = f"""\
examples:
  pyalloc exporter                          http://127.0.0.1:{DEFAULT_PORT}/metrics and /health/capacity
  pyalloc exporter --addr 0.0.0.0           for a Prometheus on another host
  pyalloc exporter --once | promtool check metrics
Shows this user's processes; run by root, everybody's.
"""


def add_parser(commands: Any) -> None:
    """Adds the command to the subparsers of `pyalloc`."""
    exporter = commands.add_parser(
        "exporter",
        help="serve metrics of your pyalloc processes (root: of everybody's) to Prometheus",
        description="Serves metrics of this host's pyalloc processes to Prometheus, read from shared memory.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    exporter.add_argument(
        "--port",
        type=int,
        default=DEFAULT_PORT,
        metavar="N",
        help=f"port to listen at; 0: any free one (default: {DEFAULT_PORT})",
    )
    exporter.add_argument(
        "--addr",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen at (default: 127.0.0.1, for this host alone)",
    )
    exporter.add_argument("--once", action="store_true", help="print the metrics once, and stop")


def run_exporter(parsed: argparse.Namespace) -> int:
    """`pyalloc exporter`."""
    try:
        _need_client()
        return _print_metrics() if parsed.once else _serve(parsed.port, parsed.addr)
    except BrokenPipeError:  # `--once | head`: the command line's
        raise
    except (errors.PyallocError, OSError) as error:
        print(f"pyalloc exporter: {error}", file=sys.stderr)
        return 1


def _serve(port: int, addr: str) -> int:
    from prometheus_client import CollectorRegistry

    from .capacity import capacity
    from .collectors import HostCollector
    from .host import Host
    from .server import start

    host, registry = Host(), CollectorRegistry()
    registry.register(HostCollector(host))
    stop = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stop)  # ahead of the threads, which inherit it
    try:
        with start(port, addr, registry, lambda: capacity(host.look().processes)) as server:
            print(f"pyalloc exporter: serving {server.url}", file=sys.stderr, flush=True)
            signal.sigwait(stop)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return 0


def _print_metrics() -> int:
    from prometheus_client import CollectorRegistry, generate_latest

    from .collectors import HostCollector
    from .host import Host

    registry = CollectorRegistry()
    registry.register(HostCollector(Host()))
    print(generate_latest(registry).decode(), end="")
    return 0
