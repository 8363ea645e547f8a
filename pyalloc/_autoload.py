"""Torch calls autoload() at the end of `import torch` (entry-point group torch.backends).

An exception here would break every `import torch` in the environment, so the only one that leaves is for
bridge:require, where the user asked for exactly that. Without PYALLOC_CONF it does nothing and imports nothing.
"""

import os


def autoload() -> None:
    """Enables pyalloc if PYALLOC_CONF says enable:True; otherwise, or when that fails, torch keeps its own
    allocator.
    """
    if not os.environ.get("PYALLOC_CONF"):
        return
    import logging

    try:
        from .allocator import enable_from_environment

        enable_from_environment()
    except Exception as error:
        from .allocator import requires_bridge
        from .errors import ConfigError

        if requires_bridge() and not isinstance(error, ConfigError):
            raise
        lines = "; ".join(str(error).splitlines())
        logging.getLogger("pyalloc").warning(
            "PYALLOC_CONF was not used, torch's native CUDA allocator stays: %s", lines
        )
