"""enable(), PYALLOC_CONF and what they refuse: each program in a process of its own."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest
from conftest import Run
from support import need

PRINT_ALLOCATED = """
import torch
x = torch.empty(1 << 20, device="cuda")
print(torch.cuda.memory_allocated(), torch.cuda.get_allocator_backend())
"""


@pytest.fixture
def need_hook() -> None:
    """Skips where pyalloc is only importable: torch finds its hook through the installed package's entry point."""
    hooks = {hook.name for hook in entry_points(group="torch.backends")}
    need("pyalloc" in hooks, "pyalloc is not installed, only importable: its torch.backends hook is missing")


def test_enable(run_on_simgpu: Run) -> None:
    done = run_on_simgpu("import pyalloc; assert pyalloc.enable(bridge='require') is True" + PRINT_ALLOCATED)
    assert done.stdout == "4194304 pyalloc\n"


@pytest.mark.usefixtures("need_hook")
@pytest.mark.parametrize("text", ["enable:True", "enable:on", " enable : true , bridge:require,"])
def test_enable_from_the_environment(run_on_simgpu: Run, text: str) -> None:
    assert run_on_simgpu(PRINT_ALLOCATED, env={"PYALLOC_CONF": text}).stdout == "4194304 pyalloc\n"


@pytest.mark.usefixtures("need_hook")
@pytest.mark.parametrize("text", ["", "enable:False", "slack:0.5"])
def test_the_environment_can_leave_torch_alone(run_on_simgpu: Run, text: str) -> None:
    assert run_on_simgpu(PRINT_ALLOCATED, env={"PYALLOC_CONF": text}).stdout == "4194304 native\n"


@pytest.mark.usefixtures("need_hook")
def test_wrong_options_in_the_environment_give_one_warning(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(PRINT_ALLOCATED, env={"PYALLOC_CONF": "enable:True,slak:1,limit:much"})
    assert done.stdout == "4194304 native\n"
    (line,) = done.stderr.splitlines()
    assert "unknown option 'slak'; the nearest is 'slack'" in line
    assert "option 'limit' has value 'much'; expected a size" in line
    assert "native CUDA allocator stays" in line


@pytest.mark.usefixtures("need_hook")
def test_warnings_as_errors_do_not_break_the_import(run_on_simgpu: Run) -> None:
    environment = {"PYALLOC_CONF": "enable:True,slak:1", "PYTHONWARNINGS": "error::RuntimeWarning"}
    assert run_on_simgpu(PRINT_ALLOCATED, env=environment).stdout == "4194304 native\n"


def test_wrong_options_as_arguments(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import pyalloc
        try:
            pyalloc.enable(slack=-1, limit="much", check="often")
        except pyalloc.ConfigError as error:
            assert len(str(error).splitlines()) == 3, error
            assert isinstance(error, ValueError)
        else:
            raise AssertionError("accepted")
        import torch
        assert not pyalloc.is_enabled() and torch.cuda.get_allocator_backend() == "native"
        assert pyalloc.enable(slack=0.1, limit="6GiB", bridge="require")
        """
        + PRINT_ALLOCATED.replace("\n", "\n        ")
    )


def test_enabling_twice(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import pyalloc
        assert pyalloc.enable(slack=0.5, bridge="require")
        assert pyalloc.enable(slack=0.5, bridge="require")
        assert pyalloc.enable(bridge="require", slack=0.50), "the same, written otherwise"
        for different in ({}, {"slack": 0.25, "bridge": "require"}):
            try:
                pyalloc.enable(**different)
            except pyalloc.StateError as error:
                assert "already enabled" in str(error) and "slack:0.5" in str(error), error
            else:
                raise AssertionError("accepted")
        import torch
        x = torch.empty(1, device="cuda")
        assert pyalloc.enable(slack=0.5, bridge="require"), "no change, also when CUDA is in use"
        try:
            pyalloc.enable(slack=0.25, bridge="require", decay=7)
        except pyalloc.StateError as error:
            assert "already enabled" in str(error) and "call enable() once" in str(error), error
            assert "slack:0.5 (asked for 0.25), decay:" in str(error) and "(asked for 7)" in str(error), error
        else:
            raise AssertionError("accepted")
        """
    )


@pytest.mark.usefixtures("need_hook")
def test_enabling_again_after_the_hook(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import torch, pyalloc
        assert pyalloc.is_enabled() and pyalloc.enable()
        x = torch.empty(1, device="cuda")
        assert pyalloc.enable()
        """,
        env={"PYALLOC_CONF": "enable:True,bridge:require"},
    )


@pytest.mark.usefixtures("need_hook")
def test_an_argument_wins_over_the_environment(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import pyalloc
        assert pyalloc.enable(limit="1GiB")    # imports torch, whose hook leaves it to us
        import torch
        torch.empty(900 << 20, dtype=torch.uint8, device="cuda")
        try:
            torch.empty(1200 << 20, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            pass
        else:
            raise AssertionError("the limit of the environment is in force")
        """,
        env={"PYALLOC_CONF": "enable:True,limit:4GiB,bridge:require"},
    )


@pytest.mark.parametrize("use", ["torch.empty(1, device='cuda')", "torch.zeros(1).pin_memory()", "torch.cuda.init()"])
@pytest.mark.parametrize("bridge", ["require", "off"])
def test_enabling_after_cuda_is_in_use(run_on_simgpu: Run, use: str, bridge: str) -> None:
    run_on_simgpu(
        f"""
        import torch, pyalloc
        {use}
        try:
            pyalloc.enable(bridge="{bridge}")
        except pyalloc.StateError as error:
            assert "CUDA is already initialised" in str(error) and "PYALLOC_CONF=enable:True" in str(error), error
        else:
            raise AssertionError("accepted")
        assert not pyalloc.is_enabled()
        x = torch.empty(1 << 20, device="cuda")
        assert torch.cuda.memory_allocated() >= 4 << 20 and torch.cuda.get_allocator_backend() == "native"
        """
    )


def test_questions_that_do_not_initialise_cuda_come_before(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import torch, pyalloc
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        torch.manual_seed(0)
        assert torch.cuda.memory_allocated() == 0
        assert pyalloc.enable(bridge="require")
        assert not torch.cuda.is_initialized()
        """
    )


def test_enable_does_not_initialise_cuda(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import pyalloc, pyalloc.simgpu
        assert pyalloc.enable(bridge="require")
        if pyalloc.simgpu.active():
            calls = pyalloc.simgpu.simulation().all_calls()
            of_use = ("cuInit", "cuCtx", "cuDevicePrimaryCtx", "cuMem")
            assert not [name for name in calls if name.startswith(of_use)], calls
        import os, torch
        child = os.fork()
        if child == 0:
            x = torch.empty(1 << 20, device="cuda")
            os._exit(0 if torch.cuda.memory_allocated() == 4 << 20 else 1)
        assert os.waitpid(child, 0)[1] == 0
        """
    )


@pytest.mark.parametrize("bridge", ["require", "off"])
def test_torch_s_backend_option(run_on_simgpu: Run, bridge: str) -> None:
    run_on_simgpu(
        f"""
        import pyalloc
        assert pyalloc.enable(bridge="{bridge}")
        import torch
        pinned = torch.zeros(1000).pin_memory()
        assert pinned.is_pinned()
        x = pinned.cuda()
        """,
        env={"PYTORCH_CUDA_ALLOC_CONF": "backend:native,expandable_segments:True"},
    )


def test_a_foreign_allocator_is_named(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import torch, pyalloc, types, sys
        # Another library's allocator: any pair of C functions, kept in a module as RMM keeps its own.
        other = types.ModuleType("rmm_like.allocators")
        sys.modules["rmm_like.allocators"] = other
        other.rmm_torch_allocator = torch.cuda.memory.CUDAPluggableAllocator(
            pyalloc.library_path(), "pyalloc_malloc", "pyalloc_free"
        )
        torch.cuda.memory.change_current_allocator(other.rmm_torch_allocator)
        try:
            pyalloc.enable()
        except pyalloc.StateError as error:
            assert "rmm_like.allocators.rmm_torch_allocator" in str(error), error
        else:
            raise AssertionError("accepted")
        assert not pyalloc.is_enabled() and torch.cuda.get_allocator_backend() == "pluggable"
        """
    )


@pytest.mark.usefixtures("need_hook")
def test_two_threads_at_once(run_on_simgpu: Run) -> None:
    """One imports torch, whose hook enables pyalloc; the other calls enable(), which imports torch."""
    run_on_simgpu(
        """
        import threading, pyalloc
        start = threading.Barrier(3)
        results = []

        def through_the_hook():
            start.wait()
            import torch
            results.append(pyalloc.is_enabled())

        def by_call():
            start.wait()
            results.append(pyalloc.enable())

        threads = [threading.Thread(target=target, daemon=True) for target in (through_the_hook, by_call, by_call)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive(), "a deadlock"
        import torch
        assert torch.cuda.get_allocator_backend() == "pyalloc" and len(results) == 3, results
        assert pyalloc.enable()
        """,
        env={"PYALLOC_CONF": "enable:True,bridge:require"},
    )


def test_a_device_without_virtual_memory_management(run_on_simgpu: Run) -> None:
    result = run_on_simgpu(
        """
        import ctypes

        assert ctypes.CDLL("libcuda.so.1").simgpu_reset(b"memory:8GiB,vmm:off") == 0
        import pyalloc

        pyalloc.enable(bridge="require")
        import torch

        try:
            torch.cuda.init()
        except RuntimeError as error:
            print("refused:", error)
        """
    )
    assert "refused:" in result.stdout
    assert "no virtual memory management" in result.stdout
    assert "run without pyalloc" in result.stdout
