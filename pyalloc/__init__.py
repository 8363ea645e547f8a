"""pyalloc: a drop-in CUDA allocator for PyTorch.

    import pyalloc
    pyalloc.enable()      # before the first use of CUDA
    import torch

Importing this package loads neither torch nor the allocator's library: each public name is fetched when first used.
"""

TYPE_CHECKING = False  # as type checkers know it, without the cost of importing typing
if TYPE_CHECKING:
    from . import instrumentation as instrumentation
    from . import metrics as metrics
    from . import simgpu as simgpu
    from . import stats_page as stats_page
    from ._version import __version__ as __version__
    from .allocator import enable as enable
    from .allocator import is_enabled as is_enabled
    from .allocator import library_path as library_path
    from .attribution import Bill as Bill
    from .attribution import bill as bill
    from .attribution import bills as bills
    from .attribution import tag as tag
    from .device_account import Ledger as Ledger
    from .device_account import ledger as ledger
    from .errors import BridgeError as BridgeError
    from .errors import ConfigError as ConfigError
    from .errors import DriverError as DriverError
    from .errors import InvalidArgumentError as InvalidArgumentError
    from .errors import LibraryError as LibraryError
    from .errors import MissingPackageError as MissingPackageError
    from .errors import OutOfMemoryError as OutOfMemoryError
    from .errors import PyallocError as PyallocError
    from .errors import SnapshotError as SnapshotError
    from .errors import StateError as StateError
    from .errors import UnknownPointerError as UnknownPointerError
    from .out_of_memory import on_oom as on_oom
    from .out_of_memory import oom_report as oom_report
    from .out_of_memory import remove_on_oom as remove_on_oom
    from .purpose_pools import PoolStats as PoolStats
    from .purpose_pools import create_pool as create_pool
    from .purpose_pools import empty_cache as empty_cache
    from .purpose_pools import escapes as escapes
    from .purpose_pools import lora_prepare as lora_prepare
    from .purpose_pools import pool as pool
    from .purpose_pools import pools as pools
    from .purpose_pools import reset_pool_peaks as reset_pool_peaks
    from .sampled_stacks import SampledBlock as SampledBlock
    from .sampled_stacks import sampled_blocks as sampled_blocks
    from .sleeping import sleep as sleep
    from .sleeping import wake as wake
    from .snapshots.capture import snapshot as snapshot
    from .snapshots.comparison import Difference as Difference
    from .snapshots.comparison import diff as diff
    from .snapshots.leak_watch import Leak as Leak
    from .snapshots.leak_watch import LeakWatch as LeakWatch
    from .snapshots.leak_watch import watch_leaks as watch_leaks
    from .snapshots.model import Snapshot as Snapshot
    from .snapshots.reading import load_snapshot as load_snapshot
    from .stats import device_stats as device_stats
    from .unmapping import on_unmap as on_unmap
    from .unmapping import remove_on_unmap as remove_on_unmap

# Where each public name lives; the imports above say the same to type checkers.
_PUBLIC = {
    "_version": ("__version__",),
    "allocator": ("enable", "is_enabled", "library_path"),
    "attribution": ("Bill", "bill", "bills", "tag"),
    "device_account": ("Ledger", "ledger"),
    "errors": (
        "BridgeError",
        "ConfigError",
        "DriverError",
        "InvalidArgumentError",
        "LibraryError",
        "MissingPackageError",
        "OutOfMemoryError",
        "PyallocError",
        "SnapshotError",
        "StateError",
        "UnknownPointerError",
    ),
    "out_of_memory": ("on_oom", "oom_report", "remove_on_oom"),
    "purpose_pools": (
        "PoolStats",
        "create_pool",
        "empty_cache",
        "escapes",
        "lora_prepare",
        "pool",
        "pools",
        "reset_pool_peaks",
    ),
    "sampled_stacks": ("SampledBlock", "sampled_blocks"),
    "snapshots.capture": ("snapshot",),
    "snapshots.comparison": ("Difference", "diff"),
    "snapshots.leak_watch": ("Leak", "LeakWatch", "watch_leaks"),
    "snapshots.model": ("Snapshot",),
    "snapshots.reading": ("load_snapshot",),
    "sleeping": ("sleep", "wake"),
    "stats": ("device_stats",),
    "unmapping": ("on_unmap", "remove_on_unmap"),
}
_MODULES = ("instrumentation", "metrics", "simgpu", "stats_page")  # those that are public as a whole


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"pyalloc.{name}")
    for module, names in _PUBLIC.items():
        if name in names:
            value: object = getattr(import_module(f"pyalloc.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'pyalloc' has no attribute {name!r}")


_NAMES = {*_MODULES, *(name for names in _PUBLIC.values() for name in names)}
__all__ = sorted(_NAMES - {"__version__"})


def __dir__() -> list[str]:
    # Modules that are not public become attributes of the package when they are imported: not what a user looks for.
    return sorted({*_NAMES, *(name for name in globals() if name.startswith("__"))})
