"""`pyalloc doctor`: what pyalloc finds on this machine and what it would do, as text or JSON.

Runs in a process of its own, so it may initialise CUDA (to ask each device about virtual memory management) and
compile the bridge.
"""

import ctypes
import json
import logging
import os
import platform
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from . import (
    _abi,
    _native,
    allocator,
    bridge_build,
    config,
    errors,
    instrumentation,
    stats_page,
    torch_options,
    user_folder,
)
from ._version import __version__

_VMM_SUPPORTED: Final = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
_TORCH_CLASSES: Final = (  # header and class, from the one the bridge derives from upwards
    ("c10/cuda/CUDACachingAllocator.h", "CUDAAllocator"),
    ("c10/core/CachingDeviceAllocator.h", "DeviceAllocator"),
    ("c10/core/Allocator.h", "Allocator"),
)


def examine(libraries: bool = False) -> dict[str, Any]:
    """Everything doctor reports. A part that cannot be found holds {"error": why}; nothing raises. libraries: imports
    those that are instrumented, to look into them.
    """
    options = _guarded(_options)
    report: dict[str, Any] = {
        "pyalloc": {"version": __version__},
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "torch": _guarded(_torch),
        "library": _guarded(_library),
        "driver": _guarded(_driver),
        "devices": _guarded(_devices),
        "bridge": _guarded(_bridge),
        "stats_page": _guarded(lambda: _stats_page(options)),
        "options": options,
        "torch_options": _guarded(_torch_options),
        "virtuals_not_covered": _guarded(_uncovered_virtuals),
        "instrumentation": _guarded(lambda: _instrumentation(options, libraries)),
    }
    report["ready"] = not any(
        "error" in report[part] for part in ("library", "driver", "bridge", "options")
    ) and _has_vmm(report["devices"])
    return report


def main(as_json: bool, libraries: bool = False) -> int:
    """Prints the report; returns 0 when pyalloc would run here with its bridge, else 1."""
    logging.getLogger("pyalloc").setLevel(logging.ERROR)  # the report says it all
    report = examine(libraries)
    if as_json:
        print(json.dumps(report, indent=1))
    else:
        print("\n".join(_lines(report)))
    return 0 if report["ready"] else 1


def _guarded(part: Any) -> Any:
    try:
        return part()
    except Exception as error:  # any failure is a finding here
        return {"error": "; ".join(str(error).splitlines()) or type(error).__name__}


def _torch() -> dict[str, Any]:
    import torch

    return {
        "version": str(torch.__version__),
        "git": str(torch.version.git_version),
        "cuda": torch.version.cuda,
        "allocator": torch._C._cuda_getAllocatorBackend() if torch.version.cuda else None,
        "path": str(Path(torch.__file__).parent),
    }


def _library() -> dict[str, Any]:
    library = _native.library()
    return {"path": library.path, "version": library.version(), "abi": _abi.ABI_VERSION}


def _driver() -> dict[str, Any]:
    library = _native.library()
    try:
        library.probe()
    except errors.DriverError as error:
        return {**library.driver(), "error": str(error)}
    return {key: value for key, value in library.driver().items() if key != "error"}


def _devices() -> list[dict[str, Any]]:
    library = _native.library()
    library.probe()
    driver = ctypes.CDLL(library.driver()["library"])
    _ask(driver, "cuInit", 0)
    count = ctypes.c_int()
    _ask(driver, "cuDeviceGetCount", ctypes.byref(count))
    devices = []
    for ordinal in range(count.value):
        handle, vmm, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
        name = ctypes.create_string_buffer(256)
        _ask(driver, "cuDeviceGet", ctypes.byref(handle), ordinal)
        _ask(driver, "cuDeviceGetName", name, len(name), handle)
        _ask(driver, "cuDeviceTotalMem_v2", ctypes.byref(total), handle)
        _ask(driver, "cuDeviceGetAttribute", ctypes.byref(vmm), _VMM_SUPPORTED, handle)
        devices.append({"device": ordinal, "name": name.value.decode(), "memory": total.value, "vmm": bool(vmm.value)})
    return devices


def _ask(driver: ctypes.CDLL, function: str, *arguments: Any) -> None:
    status = int(getattr(driver, function)(*arguments))
    if status != 0:
        raise errors.DriverError(f"{function} failed with CUDA driver error {status}")


def _has_vmm(devices: Any) -> bool:
    return isinstance(devices, list) and bool(devices) and all(device["vmm"] for device in devices)


def _bridge() -> dict[str, Any]:
    state = allocator.enabled_state()
    if state is not None and state.mode == "plain":
        return {"state": "not used", "error": state.reason}
    if state is not None and state.mode == "pools":
        return {"state": "not needed with mode:pools"}
    bridge = bridge_build.ensure_bridge()
    bridge_build.load_bridge(bridge)
    return {"state": "in use" if state else bridge.origin, "path": str(bridge.path), "key": bridge.key}


def _options() -> list[dict[str, Any]]:
    if not allocator.is_enabled():
        _native.library().configure(config.inherited_text(), "environment")
    return allocator.describe_options()


def _state(options: Any, *keys: str) -> str:
    """Whether all of these options are on. Why options cannot be read, they say themselves, once."""
    if isinstance(options, dict):
        return "unknown"
    return "on" if all(row["value"] == "on" for row in options if row["key"] in keys) else "off"


def _stats_page(options: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "state": _state(options, "stats_page", "maintenance"),
        "folder": str(user_folder.user_folder(os.geteuid())),
        "page": _native.library().stats_page_path(),  # of this process, once it has allocated
    }
    try:
        if facts["state"] == "on":
            user_folder.made_user_folder()  # as a program would
        return {**facts, "pages": len(stats_page.page_files())}
    except (OSError, errors.PyallocError) as error:
        return {**facts, "error": str(error)}


def _instrumentation(options: Any, libraries: bool) -> dict[str, Any]:
    return {"state": _state(options, "instrument"), "libraries": instrumentation.survey(libraries)}


def _torch_options() -> list[dict[str, str]]:
    state = allocator.enabled_state()
    if state is not None and state.mode == "pools":
        return []  # torch's own allocator follows them
    return [asdict(one) for one in torch_options.given()]


def _uncovered_virtuals() -> list[str]:
    include = bridge_build.target().torch_folder / "include"
    source = (bridge_build.sources().folder / "allocator.h").read_text(encoding="utf-8")
    known = set(re.findall(r"\w+", source))
    return [name for name in torch_virtuals(include) if name not in known]


def torch_virtuals(include: Path) -> list[str]:
    """Names of the virtual methods of torch's allocator classes, read from its headers."""
    names: dict[str, None] = {}
    for header, name in _TORCH_CLASSES:
        text = re.sub(r"//[^\n]*", "", (include / header).read_text(encoding="utf-8"))
        start = re.search(rf"^(?:class|struct)\s+(?:\w+_API\s+)?{name}\b[^;{{]*\{{", text, re.MULTILINE)
        if start is None:
            raise errors.BridgeError(f"no class {name} in {include / header}")
        body = text[start.end() : text.index("\n};", start.end())]
        for match in re.finditer(r"\bvirtual\s+[^;{(]*?(~?\w+)\s*\(", body):
            if not match.group(1).startswith("~"):
                names[match.group(1)] = None
    return list(names)


def _lines(report: dict[str, Any]) -> list[str]:
    lines = [f"pyalloc {report['pyalloc']['version']}, Python {report['python']['version']}"]
    for part in ("torch", "library", "driver", "bridge"):
        facts = report[part]
        shown = ", ".join(
            f"{key} {value}" for key, value in facts.items() if value not in (None, [], "") and key != "error"
        )
        lines.append(f"{part:9}{shown}")
        if "error" in facts:
            lines.append(f"{'':9}PROBLEM: {facts['error']}")
    lines.extend(_device_lines(report["devices"]))
    missing = report["virtuals_not_covered"]
    if isinstance(missing, dict):
        lines.append(f"virtuals PROBLEM: {missing['error']}")
    else:
        lines.append(
            "virtuals "
            + (
                f"of this torch that the bridge does not know: {', '.join(missing)}"
                if missing
                else "all of this torch's are known"
            )
        )
    lines.extend(_instrumentation_lines(report["instrumentation"]))
    lines.extend(_stats_page_lines(report["stats_page"]))
    lines.extend(_option_lines(report["options"]))
    lines.extend(_torch_option_lines(report["torch_options"]))
    lines.append(
        "pyalloc can run here with its bridge"
        if report["ready"]
        else "pyalloc cannot run here with its bridge; see PROBLEM above"
    )
    return lines


def _device_lines(devices: Any) -> list[str]:
    if isinstance(devices, dict):
        return [f"devices  PROBLEM: {devices['error']}"]
    if not devices:
        return ["devices  PROBLEM: none"]
    return [
        f"device {row['device']} {row['name']}, {row['memory'] / 2**30:.1f} GiB, "
        + ("virtual memory management" if row["vmm"] else "PROBLEM: no virtual memory management")
        for row in devices
    ]


def _instrumentation_lines(instrumentation: dict[str, Any]) -> list[str]:
    if "error" in instrumentation:
        return [f"instrument  PROBLEM: {instrumentation['error']}"]
    lines = [f"instrument {instrumentation['state']}: functions whose memory goes to a pool without a scope of yours"]
    for name, library in instrumentation["libraries"].items():
        if not library["installed"]:
            lines.append(f"  {name:12}  not installed")
            continue
        if not library["examined"]:
            lines.append(f"  {name:12}  {library['version']}: once it is imported; --libraries looks into it")
            continue
        counts = ", ".join(f"{len(functions)} {pool}" for pool, functions in library["wraps"].items())
        lines.append(f"  {name:12}  {library['version']}: {counts or 'none'}")
        lines.extend(f"  {'':12}  PROBLEM: {reason}" for reason in library["missing"])
    return lines


def _stats_page_lines(page: dict[str, Any]) -> list[str]:
    if "folder" not in page:
        return [f"stats page PROBLEM: {page['error']}"]
    what = {
        "on": "written to a file in",
        "off": "not written; those of other programs are in",
        "unknown": "as the options will say; those of other programs are in",
    }[page["state"]]
    there = f" ({page['pages']} there now)" if "pages" in page else ""
    lines = [f"stats page {page['state']}: {what} {page['folder']}{there}"]
    if page["page"]:
        lines.append(f"{'':9}of this process: {page['page']}")
    if "error" in page:
        lines.append(f"{'':9}PROBLEM: {page['error']}")
    return lines


def _option_lines(options: Any) -> list[str]:
    if isinstance(options, dict):
        return [f"options  PROBLEM: {options['error']}"]
    width = max(len(row["key"]) for row in options)
    origin = max(len(row["origin"]) for row in options)
    return [
        "options",
        *(f"  {row['key']:{width}}  {row['value']:12} {row['origin']:{origin}} {row['help']}" for row in options),
    ]


def _torch_option_lines(options: Any) -> list[str]:
    if not options:
        return []
    if isinstance(options, dict):
        return [f"torch's options PROBLEM: {options['error']}"]
    return [
        f"options of {options[0]['variable']}",
        *(f"  {row['option']}:{row['value']}  {row['outcome']}: {row['meaning']}" for row in options),
    ]
