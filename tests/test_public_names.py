"""Every public name is documented, examples in docstrings run, and code in sweeps/ uses public names only."""

import ast
import doctest
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja

# Public modules that are not listed in any package's `__all__`.
_FURTHER = (
    "jaxattn.lab.diagnosis",
    "jaxattn.lab.books",
    "jaxattn.lab.kinds",
    "jaxattn.lab.refute",
    "jaxattn.lab.results",
)
# Non-public modules that measures may use, with descriptions of their contents.
FOR_MEASURES: Mapping[str, str] = MappingProxyType(
    {
        "jaxattn.core.fractions": "bins of fractions of counts",
        "jaxattn.lab.results.correlations": "axes and bins of a figure",
        "jaxattn.lab.results.fits": "exponents of power laws, seed by seed",
        "jaxattn.lab.results.intervals": "the interval of a share",
        "jaxattn.lab.results.judge": "estimates with intervals",
        "jaxattn.lab.results.labels": "formatted numbers",
        "jaxattn.lab.results.run": "settings in a config",
        "jaxattn.lab.results.statistics": "the last step of every run",
        "jaxattn.lab.results.tokens": "tokens at the end of a phase",
        "jaxattn.lab.figures.rendered": "a figure with its caption",
        "jaxattn.lab.pages.layout": "pages of text, tables and figures",
        "jaxattn.lab.figures.style": "the style and colours of the package's figures",
    }
)


@cache
def public_modules() -> tuple[str, ...]:
    """Return the names of this package's public modules."""
    top = [x.__name__ for x in public_names("jaxattn").values() if inspect.ismodule(x)]
    packages = ["jaxattn", *top, *_FURTHER]
    below = [x.__name__ for name in packages for x in public_names(name).values() if inspect.ismodule(x)]
    return tuple(dict.fromkeys([*packages, *below]))


def public_names(module: str) -> dict[str, Any]:
    """Return the public objects in a module, keyed by name."""
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None) or [
        name
        for name, x in vars(found).items()
        if (inspect.isclass(x) or inspect.isroutine(x)) and x.__module__ == module
    ]
    return {name: getattr(found, name) for name in names if not name.startswith("_")}


def used_names(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (module, attributes) for each use of this package in a Python file."""
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise ja.InputError(f"{path}: line {error.lineno}: {error.msg}") from None
    roots = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "jaxattn":
            yield from ((node.module or "", [alias.name]) for alias in node.names)
        elif isinstance(node, ast.Import):
            own = [alias for alias in node.names if alias.name.partition(".")[0] == "jaxattn"]
            roots |= {alias.asname or "jaxattn" for alias in own}
            yield from (("jaxattn", alias.name.split(".")[1:]) for alias in own)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root, *names = ast.unparse(node).split(".")
            if root in roots:
                yield "jaxattn", names


def private_module(module: str, names: Sequence[str]) -> str | None:
    """Return the first private module along an attribute path, or None if all modules are public."""
    for name in names:
        whole = f"{module}.{name}"
        # Attribute access through a parent package of a public module, such as jaxattn.lab, is also allowed.
        if any(f"{public}.".startswith(f"{whole}.") for public in public_modules()):
            module = whole
            continue
        if module not in public_modules() or name not in public_names(module):
            return whole if whole in FOR_MEASURES else module
        found = getattr(importlib.import_module(module), name)
        if not isinstance(found, ModuleType):
            return None
        module = found.__name__
    return None


def private_uses(path: Path) -> list[str]:
    """Return the private names of this package that a Python file uses.

    A name is public if it is in the `__all__` of a public module. The modules in `FOR_MEASURES` are also
    allowed.
    """
    found = []
    for module, names in used_names(path):
        where = private_module(module, names)
        if where in FOR_MEASURES and not any(name.startswith("_") for name in names):
            continue
        if where is not None:
            found.append(".".join([module, *names]))
    return list(dict.fromkeys(found))


ROOT = Path(__file__).parents[1]
API = ROOT / "docs" / "reference" / "api"
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in sorted(API.glob("*.md")))
MODULES = re.findall(r"automodule:: (\S+)", TEXT)


def documented(page: str) -> Iterator[str]:
    """Yield the full names of the objects that a page of the API documents."""
    module, lines = "", page.splitlines()
    for number, line in enumerate(lines):
        if found := re.match(r"\.\. (currentmodule|py:data|automodule|auto\w+):: (\S+)", line):
            directive, name = found.groups()
            if directive == "automodule":
                module, options = name, "\n".join(lines[number + 1 : number + 4]).split("\n\n")[0]
                excluded = re.findall(r"\w+", options.partition(":exclude-members:")[2].partition("\n")[0])
                if "   :members:" in options:
                    yield from (f"{name}.{x}" for x in public_names(name) if x not in excluded)
            elif directive == "currentmodule":
                module = name
            else:
                yield f"{module}.{name}"


ENTRIES = [name for page in sorted(API.glob("*.md")) for name in documented(page.read_text(encoding="utf-8"))]
DATA = {name for name in ENTRIES if f".. py:data:: {name.rpartition('.')[2]}\n" in TEXT}


def test_every_public_module_has_a_page():
    below = {
        f"{package}.{name}": x.__name__
        for package in public_modules()
        for name, x in public_names(package).items()
        if inspect.ismodule(x)
    }
    modules = {name: name for name in public_modules() if name not in below.values()} | below
    assert {name for name, own in modules.items() if not {name, own} & {*MODULES, *DATA}} == set()


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_a_docstring(name):
    module = importlib.import_module(name)
    assert inspect.getdoc(module)
    missing = []
    for short, x in public_names(name).items():
        if inspect.ismodule(x) or f"{name}.{short}" in DATA:
            continue
        own = vars(x).get("__doc__") if inspect.isclass(x) else getattr(x, "__doc__", None)
        if not (inspect.isclass(x) or callable(x)) or not own:
            missing.append(short)
        elif inspect.isclass(x):
            methods = inspect.getmembers_static(x, lambda m: inspect.isfunction(m) or isinstance(m, property))
            missing += [
                f"{short}.{method}"
                for method, m in methods
                if not method.startswith("_") and method in vars(x) and not inspect.getdoc(m)
            ]
    assert missing == []


def test_every_public_name_has_one_entry():
    assert sorted({name for name in ENTRIES if ENTRIES.count(name) > 1}) == []
    objects = [_object(name) for name in ENTRIES if not inspect.ismodule(_object(name))]
    missing = [
        f"{module}.{name}"
        for module in public_modules()
        for name, x in public_names(module).items()
        if not inspect.ismodule(x) and not any(x is other for other in objects)
    ]
    assert missing == []


def _object(name: str) -> Any:
    found: Any = importlib.import_module("jaxattn")
    for part in name.split(".")[1:]:
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module(f"{found.__name__}.{part}")
    return found


# Functions that need files, the results of a study, a book, or the axes of a figure.
_NEED_FILES = {
    "aggregate",
    "cells",
    "create",
    "draw_directions",
    "draw_hull",
    "draw_paths",
    "draw_tokens",
    "explore",
    "export",
    "from_file",
    "load",
    "load_code",
    "load_text",
    "phase_diagram",
    "power_laws",
    "problems",
    "read_book",
    "read_claim",
    "read_corpus",
    "refute",
    "reproduce",
    "summary_table",
}


def _functions() -> dict[str, Any]:
    """Return the public functions of modules with examples, keyed by full name."""
    found = {
        f"{module}.{name}": x
        for module in public_modules()
        for name, x in public_names(module).items()
        if inspect.isroutine(x)
    }
    return {name: x for name, x in found.items() if name.rpartition(".")[2] not in _NEED_FILES}


def _example(name: str, x: Any) -> doctest.DocTest:
    names = {"ja": ja, "jax": jax, "jnp": jnp, "np": np}
    return doctest.DocTestParser().get_doctest(inspect.getdoc(x) or "", names, name, None, 0)


def test_every_public_function_has_an_example():
    assert [name for name, x in _functions().items() if not _example(name, x).examples] == []


# The example of `certify_limit` has a flow, so it runs alone.
_ALONE = ("jaxattn.theory.certify_limit",)


def _package(name: str) -> str:
    """Return the name of the package of a function, or its own name if its example runs alone."""
    return name if name in _ALONE else name.rpartition(".")[0]


_PACKAGES = sorted({_package(name) for name in _functions()})


# Their hundreds of small programs take ten seconds to compile.
@pytest.mark.more
@pytest.mark.parametrize("package", _PACKAGES)
def test_examples_in_docstrings_run(package):
    runner = doctest.DocTestRunner(verbose=False)
    said: list[str] = []
    for name, x in _functions().items():
        if _package(name) == package:
            runner.run(_example(name, x), out=said.append)
    assert said == []


def test_wrong_output_of_an_example_is_detected():
    """Example:
    >>> 1 + 1
    3
    """
    said: list[str] = []
    here = _example("wrong", test_wrong_output_of_an_example_is_detected)
    assert doctest.DocTestRunner(verbose=False).run(here, out=said.append).failed == 1


def test_every_module_with_a_page_is_public():
    assert set(MODULES) <= set(public_modules())


def test_code_in_sweeps_uses_only_public_names():
    files = list((ROOT / "sweeps").rglob("*.py"))
    assert {str(path.relative_to(ROOT)): names for path in files if (names := private_uses(path))} == {}
    uses = [
        (private_module(module, names), module, names) for path in files for module, names in used_names(path)
    ]
    assert {where for where, _, _ in uses} - {None} == set(FOR_MEASURES)
    # Names are found, also behind attributes.
    assert {".".join([module, *names]) for where, module, names in uses if where is None} >= {
        "jaxattn.theory.max_margin_from_constraints", "jaxattn.theory.selection"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("code", "private"),
    [
        ("import jaxattn as ja\nja.theory.selection", []),
        ("from jaxattn.lab.results import judge\njudge.mean", []),
        ("from jaxattn.lab.results import judge, read", ["jaxattn.lab.results.read"]),
        ("from jaxattn.lab.results.judge import _Words", ["jaxattn.lab.results.judge._Words"]),
        ("import jaxattn.lab.books\nfrom jaxattn.lab import books\njaxattn.lab.books.mean", []),
        ("import jaxattn.lab.engine.run_study", ["jaxattn.lab.engine.run_study"]),
        (
            "import jaxattn\njaxattn.lab.engine.run_study.f",
            ["jaxattn.lab.engine.run_study.f", "jaxattn.lab.engine.run_study", "jaxattn.lab.engine"],
        ),
        ("def f():\n    from jaxattn.theory import _private", ["jaxattn.theory._private"]),
    ],
)
def test_uses_of_private_names_are_found(tmp_path, code, private):
    (tmp_path / "mine.py").write_text(code)
    assert private_uses(tmp_path / "mine.py") == private


def test_file_that_cannot_be_parsed_is_rejected(tmp_path):
    (tmp_path / "mine.py").write_text("a =\n")
    with pytest.raises(ja.InputError, match=r"mine\.py: line 1: invalid syntax"):
        private_uses(tmp_path / "mine.py")
