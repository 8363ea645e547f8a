"""Options: written as Python values, checked by the core, every error at once."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import pytest
from support import need

import pyalloc
from pyalloc import _native, config


@pytest.fixture(autouse=True)
def library() -> _native.Library:
    try:
        return _native.library()
    except pyalloc.LibraryError as error:
        need(False, str(error))
        raise


def options_in_a_process(environment: str, arguments: dict[str, object]) -> dict[str, dict[str, str]]:
    """Every option in force for these texts, in a process of its own: the configuration belongs to the process."""
    code = f"""
import dataclasses, json
from pyalloc import _native, config
library = _native.library()
arguments = config.argument_text({arguments!r})
library.configure(config.joined({environment!r}, arguments), "environment")
print(json.dumps([dataclasses.asdict(option) for option in config.options(library, arguments)]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {row["key"]: row for row in json.loads(done.stdout)}


def test_arguments_as_text() -> None:
    arguments = {"guard": True, "maintenance": False, "limit": "20GiB", "decay": 5, "slack": 0.05, "bridge": None}
    assert config.argument_text(arguments) == "guard:on,maintenance:off,limit:20GiB,decay:5,slack:0.05"


def test_an_argument_cannot_smuggle_another_option() -> None:
    with pytest.raises(pyalloc.ConfigError, match="'limit' has value '1,guard:on'"):
        config.argument_text({"limit": "1,guard:on"})


def test_enable_takes_every_option() -> None:
    accepted = set(inspect.signature(pyalloc.enable).parameters)
    known = {row["key"] for row in _native.library().config()}
    assert accepted == known - {"enable"}  # calling enable() says that already


@pytest.mark.parametrize(("written", "read"), [(True, "on"), ("on", "on"), (False, "off"), ("off", "off")])
def test_switches(written: object, read: str) -> None:
    assert options_in_a_process("", {"guard": written})["guard"]["value"] == read


def test_switches_in_the_environment_take_python_words() -> None:
    options = options_in_a_process("guard:True, maintenance:False", {})
    assert (options["guard"]["value"], options["maintenance"]["value"]) == ("on", "off")


def test_an_argument_wins_over_the_environment_and_each_option_knows_its_origin() -> None:
    options = options_in_a_process("slack:0.5,limit:1GiB", {"slack": 0.25})
    assert (options["slack"]["value"], options["slack"]["origin"]) == ("0.25", "argument")
    assert (options["limit"]["value"], options["limit"]["origin"]) == (str(1 << 30), "environment")
    assert options["decay"]["origin"] == "default"
    assert options["decay"]["value"] == options["decay"]["default"]


def test_every_error_of_a_text_is_reported_and_nothing_changes() -> None:
    library = _native.library()
    before = library.config()
    with pytest.raises(pyalloc.ConfigError) as caught:
        library.configure("slak:1,limit:much,guard:maybe,check", "argument")
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    text = "\n".join(lines)
    assert "unknown option 'slak'; the nearest is 'slack'" in text
    assert "option 'limit' has value 'much'; expected a size" in text
    assert "option 'guard' has value 'maybe'; expected on or off" in text
    assert "'check' is not KEY:VALUE; expected as in enable:True,limit:20GiB" in text
    assert library.config() == before


def test_an_error_quotes_what_was_written() -> None:
    with pytest.raises(pyalloc.ConfigError) as caught:
        _native.library().configure(" enable=True , enable : True limit:1GiB, sla k:1, ", "argument")
    no_value, value, key = str(caught.value).splitlines()
    assert no_value == "'enable=True' is not KEY:VALUE; expected as in enable:True,limit:20GiB"
    assert value.startswith("option 'enable' has value 'True limit:1GiB'; expected on or off")
    assert key.startswith("unknown option 'sla k'; the nearest is 'slack'")


def test_an_error_of_the_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    library = _native.library()
    monkeypatch.setenv("PYALLOC_CONF", "limit:5M,slack")
    with pytest.raises(pyalloc.ConfigError) as caught:
        config.configure(library, "limit:1GiB,guard:maybe")
    bare, limit, guard = str(caught.value).splitlines()
    assert bare.startswith("PYALLOC_CONF: 'slack' is not KEY:VALUE")
    assert limit.startswith("PYALLOC_CONF: option 'limit' has value '5M'")
    assert guard.startswith("option 'guard' has value 'maybe'")


@pytest.mark.parametrize(
    "text",
    [
        "limit:-5",
        "slack:nan",
        "memory_fraction:1.5",
        "decay:0.5",
        "bridge:maybe",
        "limit:99999999999999999999TiB",
        ":1",
        ",",
    ],
)
def test_values_that_make_no_sense(text: str) -> None:
    with pytest.raises(pyalloc.ConfigError):
        _native.library().configure(text, "argument")
