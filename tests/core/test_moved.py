"""Old names of version 0.2 raise errors that give the new location, which exists."""

import importlib
from pathlib import Path

import pytest

import jaxattn as ja
from jaxattn.core import moved
from jaxattn.core.errors import InputError
from jaxattn.lab.study.import_paths import ImportPaths

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("old", "new"), moved.MODULES.items())
def test_importing_a_moved_module_reports_its_new_location(old, new):
    with pytest.raises(ModuleNotFoundError, match=f"moved to {new}"):
        importlib.import_module(old)
    if new.startswith("jaxattn."):
        importlib.import_module(new)
    else:
        assert (ROOT / new.partition(" ")[0]).exists()


def test_importing_a_moved_submodule_reports_its_new_location():
    assert moved.new_location("jaxattn.results.judge") == "jaxattn.lab.results.judge"
    assert moved.new_location("jaxattn.resultant") == ""
    with pytest.raises(ModuleNotFoundError, match=r"moved to jaxattn\.lab\.results in"):
        importlib.import_module("jaxattn.results.judge")


@pytest.mark.parametrize("name", moved.NAMES["jaxattn.theory"])
def test_accessing_a_moved_name_reports_its_new_location(name):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; moved to sweeps/"):
        getattr(ja.theory, name)


@pytest.mark.parametrize(
    ("package", "name", "remedy"),
    [
        (ja, "Generator", "write a function"),
        (ja.data, "Generator", "write a function"),
        (ja.dynamics, "descent", "use ja.dynamics.Descent and ja.dynamics.run"),
        (ja.dynamics, "Algorithm", "derive a class from ja.Phase"),
    ],
)
def test_accessing_a_removed_name_suggests_a_remedy(package, name, remedy):
    with pytest.raises(AttributeError, match=f"'{name}'; removed in version 0.3: {remedy}"):
        getattr(package, name)


def test_unknown_names_raise_errors_without_a_hint():
    with pytest.raises(AttributeError, match=r"no attribute 'max_margins'$"):
        _ = ja.theory.max_margins
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'jaxattn\.nothing'$"):
        importlib.import_module("jaxattn.nothing")


def test_a_moved_module_in_a_sweep_file_is_reported_with_its_new_location():
    with pytest.raises(InputError, match=r"no such module; moved to jaxattn\.lab\.probes in"):
        ImportPaths().load("jaxattn.probes:Cover")


@pytest.mark.parametrize("words", [name.split() for name in moved.COMMANDS])
def test_a_moved_command_is_reported_with_its_replacement(call, words):
    status, _, said = call(*words, "x")
    assert status == 2
    assert moved.COMMANDS[" ".join(words)] in said
