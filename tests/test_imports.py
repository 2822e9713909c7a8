"""Imports point from higher to lower subpackages, without circles."""

import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location(
    "size_of_package", Path(__file__).resolve().parent.parent / "benchmarks/size.py"
)
size = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(size)

# A module imports from its own subpackage and from earlier ones in this list. So the library, all before
# the lab, imports nothing of the lab.
LIBRARY = ("core", "base", "data", "losses", "attention", "theory", "models", "dynamics")
LAB = (
    "kinds",
    "storage",
    "texts",
    "probes",
    "study",
    "results",
    "figures",
    "loaded",
    "pages",
    "engine",
    "api",
    "explorer",
    "diagnosis",
    "bisection",
    "refute",
    "books",
    "cli",
)
TOP = size.PACKAGE.name
ORDER = [
    *(f"{TOP}.{room}" for room in LIBRARY),
    TOP,
    size.LAB,
    *(f"{size.LAB}.{room}" for room in LAB),
    f"{TOP}.__main__",
]


@pytest.fixture(scope="module")
def graph():
    return size.imports()


def test_there_are_no_circular_imports(graph):
    assert size.circle(graph) == []


def test_every_subpackage_is_assigned_a_level(graph):
    assert {size.room(name) for name in graph} == set(ORDER)


def test_imports_refer_only_to_lower_levels(graph):
    place = {room: number for number, room in enumerate(ORDER)}
    forward = [
        f"{name} -> {other}"
        for name, imported in graph.items()
        for other in imported
        if place[size.room(other)] > place[size.room(name)]
    ]
    assert forward == []


def _package(directory, **sources):
    root = directory / "small"
    root.mkdir()
    (root / "__init__.py").touch()
    for name, source in sources.items():
        (root / f"{name}.py").write_text(source)
    return root


def test_circular_imports_inside_functions_are_detected(tmp_path):
    root = _package(tmp_path, a="from small import b", b="def f():\n    import small.a")
    assert set(size.circle(size.imports(root))) == {"small.a", "small.b"}


def test_imports_under_type_checking_are_counted(tmp_path):
    root = _package(
        tmp_path, a="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from small import b", b=""
    )
    assert size.imports(root)["small.a"] == {"small.b"}


def test_lazy_imports_in_an_init_file_are_not_counted(tmp_path):
    lazy = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from small import b"
    root = _package(tmp_path, a="", b="from small import a")
    (root / "__init__.py").write_text(lazy)
    assert size.imports(root)["small"] == set()


def test_level_is_one_above_the_highest_imported_level(tmp_path):
    root = _package(
        tmp_path, a="from small.b import x", b="from small import c\nx = c", c="", d="import small.c"
    )
    level = size.levels(size.imports(root))
    assert (level["small.a"], level["small.b"], level["small.c"], level["small.d"]) == (3, 2, 1, 2)


def test_docstrings_comments_and_blank_lines_are_not_counted():
    documented = '"""A module."""\n\n# why\ndef f():\n    """One\n\n    and another."""\n'
    assert size.code_lines(documented + '    return """two\nlines"""\n') == 3
