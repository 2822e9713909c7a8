"""Imports only point down: from a floor to a lower one, and never around a circle."""

import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location(
    "size_of_package", Path(__file__).resolve().parent.parent / "benchmarks/size.py"
)
size = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(size)

# Rooms of one floor import none of each other; a room imports those of floors further down in this list.
FLOORS = (
    ("__main__",),
    ("cli",),
    ("bench", "bisection", "reproduction"),
    ("api", "diagnosis", "explorer"),
    ("engine", "results"),
    ("study",),
    ("dynamics", "probes"),
    ("models", "theory"),
    ("attention",),
    ("data", "losses"),
    ("base",),
    ("storage", "chips"),
    ("core",),
)
# The package's own `__init__` only names what users import, on first use: it belongs to no floor.
TOP = size.PACKAGE.name
HEIGHT = {f"{TOP}.{room}": len(FLOORS) - floor for floor, rooms in enumerate(FLOORS) for room in rooms}


@pytest.fixture(scope="module")
def graph():
    return size.imports()


def test_modules_import_each_other_in_no_circle(graph):
    assert size.circle(graph) == []


def test_every_room_has_its_floor_and_every_floor_its_rooms(graph):
    assert {size.room(name) for name in graph} - {TOP} == set(HEIGHT)


def test_imports_point_down(graph):
    upward = [
        f"{name} -> {other}"
        for name, imported in graph.items()
        for other in imported
        if TOP not in (name, other)
        and size.room(name) != size.room(other)
        and HEIGHT[size.room(name)] <= HEIGHT[size.room(other)]
    ]
    assert upward == []


def _package(directory, **sources):
    root = directory / "small"
    root.mkdir()
    (root / "__init__.py").touch()
    for name, source in sources.items():
        (root / f"{name}.py").write_text(source)
    return root


def test_a_circle_is_found_also_through_an_import_inside_a_function(tmp_path):
    root = _package(tmp_path, a="from small import b", b="def f():\n    import small.a")
    assert set(size.circle(size.imports(root))) == {"small.a", "small.b"}


def test_an_import_for_types_alone_is_one(tmp_path):
    root = _package(
        tmp_path, a="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from small import b", b=""
    )
    assert size.imports(root)["small.a"] == {"small.b"}


def test_levels_are_one_above_the_highest_import(tmp_path):
    root = _package(
        tmp_path, a="from small.b import x", b="from small import c\nx = c", c="", d="import small.c"
    )
    level = size.levels(size.imports(root))
    assert (level["small.a"], level["small.b"], level["small.c"], level["small.d"]) == (3, 2, 1, 2)


def test_docstrings_comments_and_blank_lines_are_no_code():
    documented = '"""A module."""\n\n# why\ndef f():\n    """One\n\n    and another."""\n'
    assert size.code_lines(documented + '    return """two\nlines"""\n') == 3
