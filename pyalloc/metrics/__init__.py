"""Prometheus metrics, of this process or of all of the host; needs the extra pyalloc[metrics].

    pyalloc.metrics.serve(9464)                                          # http://127.0.0.1:9464/metrics
    prometheus_client.REGISTRY.register(pyalloc.metrics.collector())     # beside the program's own
    pyalloc exporter                                                     # a shell: every process of the host

Names, kinds, units and help come from the core's tables (naming.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import errors

if TYPE_CHECKING:
    from .collectors import ProcessCollector
    from .server import MetricsServer

DEFAULT_PORT = 9464


def collector() -> ProcessCollector:
    """A collector of this process's figures, for a registry of prometheus_client:

        prometheus_client.REGISTRY.register(pyalloc.metrics.collector())

    At each scrape it asks the core, which walks the heaps. Labels are device and pool. Registering a second one is an
    error of the registry's. Raises MissingPackageError without prometheus_client.
    """
    _need_client()
    from .collectors import ProcessCollector

    return ProcessCollector()


def serve(port: int = DEFAULT_PORT, addr: str = "127.0.0.1") -> MetricsServer:
    """Serves this process's figures over HTTP from a thread: /metrics, and /health/capacity as JSON.

    port: 0 for any free one, which the server returned says. addr: one of this host's; only programs of this host reach
    127.0.0.1, whoever reaches the host reaches 0.0.0.0. Works before and after enable(); a forked child does not serve.
    Raises InvalidArgumentError for a port or an address that cannot be, StateError for a port that is taken, and
    MissingPackageError without prometheus_client.
    """
    _need_client()
    from prometheus_client import CollectorRegistry

    from .capacity import capacity
    from .collectors import ProcessCollector
    from .own_process import own_process
    from .server import start

    registry = CollectorRegistry()
    registry.register(ProcessCollector())
    return start(port, addr, registry, lambda: capacity([own_process()]))


def _need_client() -> None:
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise errors.MissingPackageError(
            "metrics need the package prometheus_client: pip install prometheus_client"
        ) from error
