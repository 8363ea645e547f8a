"""enable(): makes pyalloc the CUDA allocator of torch, before CUDA is used. Never initialises CUDA itself.

Outcomes: the bridge (everything works), the plain registration (no compiler, or bridge:off; one line says what is
lost), or torch's native allocator stays (no driver, no CUDA build of torch; one line says why). bridge:require turns
the last two into errors.
"""

import logging
import sys
import threading
from dataclasses import dataclass
from typing import Any, Final, Literal

from . import (
    _native,
    bridge_build,
    config,
    errors,
    instrumentation,
    plain,
    sampled_stacks,
    torch_dumps,
    torch_options,
    torch_pools,
    unmapping,
)
from .config import Size, Switch

_log = logging.getLogger("pyalloc")

_CUDA_IN_USE: Final = (
    "CUDA is already initialised, so torch's allocator can no longer be replaced: call pyalloc.enable() before the "
    "first use of CUDA, or set PYALLOC_CONF=enable:True to have it done while torch is imported; "
    'pyalloc.enable(mode="pools") leaves torch its allocator and can be called now'
)


@dataclass(frozen=True)
class Enabled:
    """How pyalloc runs in this process. `reason` says why the bridge is not used, when it is not."""

    mode: Literal["bridge", "plain", "pools"]
    reason: str
    arguments: str  # the options that enable() was given, as text
    text: str  # those and the environment's: the whole configuration
    values: dict[str, str]


_lock = threading.RLock()
_enabled: Enabled | None = None
_explicit = threading.local()  # .active: enable() is importing torch, so torch's hook has nothing to do


def library_path() -> str:
    """Absolute path of libpyalloc.so, for registering it by hand:

    torch.cuda.memory.CUDAPluggableAllocator(pyalloc.library_path(), "pyalloc_malloc", "pyalloc_free")

    Raises LibraryError when the library is missing.
    """
    return _native.library_path()


def is_enabled() -> bool:
    """Whether enable() made pyalloc torch's CUDA allocator in this process; with mode="pools", that of its pools."""
    return _enabled is not None


def enabled_state() -> Enabled | None:
    """How pyalloc runs, or None while it does not."""
    return _enabled


def enable(
    *,
    mode: Literal["allocator", "pools"] | None = None,
    bridge: Literal["auto", "off", "require"] | None = None,
    slack: float | None = None,
    limit: Size | None = None,
    general_limit: Size | None = None,
    weights_limit: Size | None = None,
    kv_limit: Size | None = None,
    workspace_limit: Size | None = None,
    lora_limit: Size | None = None,
    memory_fraction: float | None = None,
    cross_stream_wait: Switch | None = None,
    decay: int | None = None,
    maintenance: Switch | None = None,
    stats_page: Switch | None = None,
    check: Literal["off", "cheap", "full"] | None = None,
    guard: Switch | None = None,
    lora_reserve: Size | None = None,
    predict_lifetimes: Switch | None = None,
    kv_large_threshold: Size | None = None,
    lora_overflow: Literal["general", "error"] | None = None,
    sample_stacks: Size | None = None,
    instrument: Switch | None = None,
    control_socket: Switch | None = None,
) -> bool:
    """Makes pyalloc torch's CUDA allocator for the rest of this process. Call it before the first use of CUDA.

    Every option can also be given in PYALLOC_CONF ("slack:0.05,limit:20GiB"); an argument wins over it, and it wins
    over what torch's own variable says (per_process_memory_fraction). `pyalloc doctor` lists each with its meaning,
    unit, default and origin.

    Returns True when pyalloc is in use; False when torch's native allocator stays, and then one logged line says why
    (no NVIDIA driver, a CPU build of torch, no library). A second call with an equal configuration changes nothing
    and returns True.

    mode="pools": torch keeps its own allocator, and only what is allocated inside `with pyalloc.pool(...)` is
    pyalloc's, through torch's MemPools. It can be called at any time, also after CUDA is in use, and needs no bridge.
    What differs there:

    - Torch asks pyalloc for whole segments: 2 MiB for blocks up to 1 MiB, 20 MiB for those under 10 MiB, multiples of
      2 MiB for larger ones. pools(), limits, ledger() and oom_report() count segments; torch.cuda's functions count
      tensors, and see those of the pools too.
    - Torch keeps the segments of a pool for that pool. pyalloc.empty_cache() gives the free ones back; torch's own
      empty_cache() does not.
    - A refusal is torch's own torch.OutOfMemoryError; pyalloc's reason is added as a note (Python 3.11 and newer), and
      is in oom_report(). Torch holds its lock while it asks for a segment: on_oom functions are asked by
      lora_prepare() alone, and on_unmap() is refused.
    - Nothing is chosen without a scope: `instrument` and `predict_lifetimes` do nothing, nor does `sample_stacks`; a
      logged line names those that were asked for. Tags are not charged, and escapes() counts the segments that a step
      leaves to torch.
    - A scope of a pool that sleeps is refused, and sleep() while a scope of the pool is open, with StateError.
    - Inside the capture of a CUDA graph a scope does nothing. PYTORCH_NO_CUDA_MEMORY_CACHING goes around all pools.
    - A pool's tensors cannot be shared with other processes (CUDA error: invalid argument), nor copied between devices
      that cannot reach each other's memory.

    Raises:
        ConfigError: an option or value is wrong; lists every one.
        StateError: CUDA is already in use (mode="allocator"), another allocator is installed, or pyalloc runs with
            another configuration.
        BridgeError: with bridge="require" only: the bridge, or pyalloc at all, cannot be used here.
    """
    arguments = config.argument_text(
        {
            "mode": mode,
            "bridge": bridge,
            "slack": slack,
            "limit": limit,
            "general_limit": general_limit,
            "weights_limit": weights_limit,
            "kv_limit": kv_limit,
            "workspace_limit": workspace_limit,
            "lora_limit": lora_limit,
            "memory_fraction": memory_fraction,
            "cross_stream_wait": cross_stream_wait,
            "decay": decay,
            "maintenance": maintenance,
            "stats_page": stats_page,
            "check": check,
            "guard": guard,
            "lora_reserve": lora_reserve,
            "predict_lifetimes": predict_lifetimes,
            "kv_large_threshold": kv_large_threshold,
            "lora_overflow": lora_overflow,
            "sample_stacks": sample_stacks,
            "instrument": instrument,
            "control_socket": control_socket,
        }
    )
    _explicit.active = True
    try:
        import torch  # noqa: F401  (outside the lock: another thread may be importing it and waiting for us in its hook)
    finally:
        _explicit.active = False
    return _enable(arguments)


def enable_from_environment() -> bool:
    """What torch's hook calls when PYALLOC_CONF is set: enable(), if that variable says enable:True. Raises as
    enable() does.
    """
    if getattr(_explicit, "active", False):
        return False
    library = _native.library()
    with _lock:
        if _enabled is not None:
            return True
        library.configure(config.environment_text(), "environment")
        if config.values(library)["enable"] != "on":
            return False
    return _enable("")


def _enable(arguments: str) -> bool:
    global _enabled
    with _lock:
        try:
            library = _native.library()
        except errors.LibraryError as error:
            return _stay_native(str(error), requires_bridge(arguments))
        if _enabled is not None:
            return _confirm_equal(library, _enabled, arguments)
        text = config.configure(library, arguments)
        try:
            _enabled = _install(library, arguments, text)
        except errors.PyallocError:
            library.configure(config.inherited_text(), "environment")
            raise
        if _enabled is not None and _enabled.mode != "pools" and _enabled.values["instrument"] == "on":
            instrumentation.install()
        if _enabled is not None and _enabled.values["control_socket"] == "on":
            _open_control_socket()
        return _enabled is not None


def _open_control_socket() -> None:
    """The program goes on without it."""
    from .snapshots import control_socket

    try:
        control_socket.start()
    except (OSError, errors.StateError) as error:
        _log.warning("pyalloc's control socket is not open: %s", error)


def requires_bridge(arguments: str = "") -> bool:
    """Whether the options say bridge:require; for when the core, which parses options, is missing or refused them."""
    text = f"{config.environment_text()},{arguments}".replace(" ", "")
    return [entry for entry in text.split(",") if entry.startswith("bridge:")][-1:] == ["bridge:require"]


def _stay_native(reason: str, required: bool) -> Literal[False]:
    if required:
        raise errors.BridgeError(f"bridge:require was asked for, but {reason}")
    _log.warning("torch's native CUDA allocator stays: %s", reason)
    return False


def _confirm_equal(library: _native.Library, state: Enabled, arguments: str) -> bool:
    """True when `arguments` ask for what is in force already; else StateError, and nothing changes."""
    text = config.joined(config.inherited_text(), arguments)
    if text == state.text:
        return True
    advice = "call enable() once, with all its options, at the start"
    if state.values["enable"] == "on":
        advice = "give the options to what enabled it: --conf of pyalloc run or record, or PYALLOC_CONF"
    try:
        library.configure(text, "environment")
    except errors.StateError as error:  # devices are in use, and the core found a difference
        raise errors.StateError(f"pyalloc is already enabled: {error}; {advice}") from error
    wanted = config.values(library)
    library.configure(state.text, "environment")
    different = [
        f"{key}:{state.values[key]} (asked for {wanted[key]})" for key in wanted if wanted[key] != state.values[key]
    ]
    if different:
        raise errors.StateError(f"pyalloc is already enabled with {', '.join(different)}; {advice}")
    return True


def _install(library: _native.Library, arguments: str, text: str) -> Enabled | None:
    import torch

    values = config.values(library)
    required = values["bridge"] == "require"
    if torch.version.cuda is None:
        _stay_native(f"torch {torch.__version__} is not a CUDA build", required)
        return None
    try:
        library.probe()
    except errors.DriverError as error:
        _stay_native(str(error), required)
        return None
    _check_fork()
    if values["mode"] == "pools":
        if unmapping.registered():
            raise errors.StateError(unmapping.NOT_WITH_POOLS)
        torch_pools.install(library)
        _say_what_pools_lack(library, arguments)
        return Enabled("pools", "mode:pools", arguments, text, values)
    _check_state()
    _read_torch_configuration()
    _say_what_becomes_of_torch_options(values)
    reason = "bridge:off"
    if values["bridge"] != "off":
        try:
            bridge = bridge_build.load_bridge(bridge_build.ensure_bridge())
            if bridge_build.cuda_in_use(bridge):
                raise errors.StateError(_CUDA_IN_USE)
            bridge_build.install_bridge(bridge, library.api())
            sampled_stacks.start(bridge, int(values["sample_stacks"]))
            torch_dumps.write_for_viewers()
            return Enabled("bridge", "", arguments, text, values)
        except errors.BridgeError as error:
            if required:
                raise
            reason = str(error)
    try:
        plain.install_plain(library)
    except RuntimeError as error:  # torch found its allocator in use
        raise errors.StateError(f"{_CUDA_IN_USE} ({error})") from error
    _log.warning("pyalloc runs without its torch bridge (%s): %s", reason, plain.LOST)
    _say_what_is_not_sampled(values)
    return Enabled("plain", reason, arguments, text, values)


def _say_what_is_not_sampled(values: dict[str, str]) -> None:
    if values["sample_stacks"] != "0":
        _log.warning("sample_stacks:%s has no effect without the torch bridge", values["sample_stacks"])


def _say_what_pools_lack(library: _native.Library, arguments: str) -> None:
    """A line about options that somebody set to what mode:pools does not do."""
    lacks = {"bridge": "require", "instrument": "on", "predict_lifetimes": "on"}
    idle = [
        f"{one.key}:{one.value}"
        for one in config.options(library, arguments)
        if one.origin != "default"
        and (lacks.get(one.key) == one.value or (one.key == "sample_stacks" and one.value != "0"))
    ]
    if idle:
        _log.warning("with mode:pools, which leaves torch its allocator, this has no effect: %s", ", ".join(idle))


def _read_torch_configuration() -> None:
    """Torch reads its variable late, and with "backend:native" in it then insists on its own allocator: make it now."""
    import torch

    if torch._C._cuda_getAllocatorBackend() != "native":
        return
    try:
        torch._C._cuda_memorySnapshot(None)
    except (ValueError, RuntimeError) as error:
        raise errors.ConfigError(
            f"torch cannot read its own allocator configuration ({torch_options.variable()}): {error}"
        ) from error


def _check_fork() -> None:
    import torch

    if torch.cuda._is_in_bad_fork():
        raise errors.StateError(
            "this process was forked after CUDA was initialised; start it with the spawn method instead"
        )


def _check_state() -> None:
    """StateError unless torch's allocator can still be replaced."""
    import torch

    cuda: Any = torch.cuda  # has functions without annotations
    if cuda.is_initialized():
        raise errors.StateError(_CUDA_IN_USE)
    backend = torch._C._cuda_getAllocatorBackend()
    if backend not in ("native", "cudaMallocAsync"):
        raise errors.StateError(
            f"another CUDA allocator is installed in torch already: {_name_of_current_allocator(backend)}; "
            "keep one of the two"
        )


def _name_of_current_allocator(backend: str) -> str:
    """A pluggable allocator says only "pluggable": look for the module variable that holds it."""
    import torch

    current = torch._C._cuda_getAllocator()
    for module_name, module in list(sys.modules.items()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if isinstance(value, torch.cuda.memory._CUDAAllocator) and value._allocator is current:
                return f"{module_name}.{name}"
    likely = [name for name in ("rmm", "cupy") if name in sys.modules]
    return f"{backend!r}" + (
        f", perhaps of {' or '.join(likely)}" if likely else " (registered with change_current_allocator)"
    )


def _say_what_becomes_of_torch_options(in_force: dict[str, str]) -> None:
    line = torch_options.line(in_force)
    if line:
        _log.log(logging.WARNING if "does not use" in line else logging.INFO, "%s", line)


def describe_options() -> list[dict[str, Any]]:
    """Every option with value, default, origin and help. A call of enable() counts as its argument enable:on."""
    arguments = _enabled.arguments if _enabled is not None else ""
    options = [vars(option) for option in config.options(_native.library(), arguments)]
    for option in options:
        if option["key"] == "enable" and option["value"] == "off" and _enabled is not None:
            option.update(value="on", origin="argument")
    return options
