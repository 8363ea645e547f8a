"""Torch's own variables under pyalloc: what is translated, what wins, what is said, and what torch refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import Run

from pyalloc import torch_options

FRACTION = """
import logging
logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
import pyalloc
assert pyalloc.enable({arguments})
import torch
x = torch.empty(1, device="cuda")
whole = pyalloc.ledger()
print(round(whole.limit / whole.total, 6))
"""


@pytest.mark.parametrize("arguments", ["bridge='require'", "bridge='off'"])
@pytest.mark.parametrize("variable", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_the_memory_fraction_is_translated(run_on_simgpu: Run, variable: str, arguments: str) -> None:
    env = {variable: " per_process_memory_fraction : 0.5, backend:native", "PYALLOC_CONF": ""}
    done = run_on_simgpu(FRACTION.format(arguments=arguments), env=env)
    assert done.stdout.split() == ["0.5"]
    assert "INFO pyalloc takes per_process_memory_fraction:0.5 as memory_fraction, now 0.5" in done.stderr
    assert "does not use" not in done.stderr


@pytest.mark.parametrize(
    ("conf", "arguments", "in_force"),
    [
        ("memory_fraction:1", "bridge='require'", "1.0"),
        ("memory_fraction:0.25", "bridge='require'", "0.25"),
        ("memory_fraction:0.25", "bridge='require', memory_fraction=0.75", "0.75"),
    ],
)
def test_pyalloc_s_own_options_win(run_on_simgpu: Run, conf: str, arguments: str, in_force: str) -> None:
    env = {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.5", "PYALLOC_CONF": conf}
    assert run_on_simgpu(FRACTION.format(arguments=arguments), env=env).stdout.split() == [in_force]


def test_the_first_variable_that_is_set_is_the_one(run_on_simgpu: Run) -> None:
    env = {"PYTORCH_CUDA_ALLOC_CONF": "", "PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.5", "PYALLOC_CONF": ""}
    assert run_on_simgpu(FRACTION.format(arguments="bridge='require'"), env=env).stdout.split() == ["1.0"]


def test_what_is_not_used_is_named_in_one_line(run_on_simgpu: Run) -> None:
    text = "expandable_segments:True,roundup_power2_divisions:[256:1,>:8],pinned_num_register_threads:2"
    text += ",throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5,max_split_size_mb:64"
    done = run_on_simgpu(
        FRACTION.format(arguments="bridge='require'"), env={"PYTORCH_ALLOC_CONF": text, "PYALLOC_CONF": ""}
    )
    lines = [line for line in done.stderr.splitlines() if "PYTORCH" in line]
    assert lines == [
        "WARNING pyalloc does not use expandable_segments, roundup_power2_divisions, max_split_size_mb of "
        "PYTORCH_ALLOC_CONF; it takes per_process_memory_fraction:0.5 as memory_fraction, now 0.5"
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("per_process_memory_fraction:1.5", "set it in [0.0, 1.0]"),
        ("per_process_memory_fraction:half", "stod"),
        ("throw_on_cudamalloc_oom:yes", "Expected 'True' or 'False'"),
        ("max_split:1", "Unrecognized key 'max_split'"),
    ],
)
def test_what_torch_refuses_is_refused_and_torch_s_allocator_stays(run_on_simgpu: Run, text: str, said: str) -> None:
    run_on_simgpu(
        f"""
        import pyalloc
        try:
            pyalloc.enable()
        except pyalloc.ConfigError as error:
            assert "(PYTORCH_ALLOC_CONF)" in str(error) and {said!r} in str(error), error
        else:
            raise AssertionError("enabled")
        assert not pyalloc.is_enabled()
        import torch
        assert torch.cuda.get_allocator_backend() == "native"
        """,
        env={"PYTORCH_ALLOC_CONF": text, "PYALLOC_CONF": ""},
    )


def test_the_other_backend_is_replaced_and_named(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(
        FRACTION.format(arguments="bridge='require'"),
        env={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync", "PYALLOC_CONF": ""},
    )
    assert "WARNING pyalloc does not use backend of PYTORCH_CUDA_ALLOC_CONF" in done.stderr


def test_doctor_shows_them(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(
        """
        from pyalloc import doctor
        report = doctor.examine()
        options = {row["key"]: row for row in report["options"]}
        fraction = options["memory_fraction"]
        assert (fraction["value"], fraction["origin"]) == ("0.5", "PYTORCH_ALLOC_CONF")
        assert options["slack"]["origin"] == "environment" and options["limit"]["origin"] == "default"
        assert [(one["option"], one["outcome"]) for one in report["torch_options"]] == [
            ("max_split_size_mb", "ignored"), ("per_process_memory_fraction", "translated"),
            ("pinned_free_catch_all", "torch's")]
        doctor.main(as_json=False)
        """,
        env={
            "PYTORCH_ALLOC_CONF": "max_split_size_mb:64,per_process_memory_fraction:0.5,pinned_free_catch_all:False",
            "PYALLOC_CONF": "slack:0.5",
        },
    )
    assert "options of PYTORCH_ALLOC_CONF\n  max_split_size_mb:64  ignored: " in done.stdout


def test_the_table_has_every_option_of_this_torch(run_on_simgpu: Run) -> None:
    """Those of the CUDA part stand in a header; that the others exist is asked of torch."""
    done = run_on_simgpu(
        f"""
        import torch
        for option, value in {VALUES!r}.items():
            torch._C._accelerator_setAllocatorSettings(f"{{option}}:{{value}}")
        print(torch.__path__[0])
        """,
        env={"PYALLOC_CONF": ""},
    )
    header = Path(done.stdout.split()[-1], "include", "c10", "cuda", "CUDAAllocatorConfig.h").read_text()
    keys = re.search(r"getKeys\(\) \{.*?keys\{(.*?)\};", header, re.DOTALL)
    assert keys is not None
    joined = re.sub(r"//[^\n]*", "", keys.group(1))
    names = {"".join(re.findall(r'"(\w+)"', part)) for part in joined.split(",")}
    assert "backend" in names
    assert names <= set(torch_options.TABLE)
    assert set(VALUES) | {"release_lock_on_hipmalloc", "pinned_use_hip_host_register"} == set(torch_options.TABLE)


VALUES = {
    "per_process_memory_fraction": "0.5",
    "throw_on_cudamalloc_oom": "True",
    "backend": "native",
    "expandable_segments": "False",
    "garbage_collection_threshold": "0.5",
    "graph_capture_record_stream_reuse": "False",
    "large_segment_size_mb": "32",
    "max_non_split_rounding_mb": "32",
    "max_split_size_mb": "64",
    "release_lock_on_cudamalloc": "False",
    "roundup_power2_divisions": "[256:1,>:8]",
    "pinned_free_catch_all": "False",
    "pinned_max_cached_size_mb": "64",
    "pinned_max_round_threshold_mb": "32",
    "pinned_num_register_threads": "2",
    "pinned_reserve_segment_size_mb": "1",
    "pinned_use_background_threads": "False",
    "pinned_use_cuda_host_register": "False",
}
