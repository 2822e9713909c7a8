"""Every public name is documented in the reference; code in sweeps/ uses public names only."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

import jaxattn

ROOT = Path(__file__).parents[1]
API = ROOT / "docs" / "reference" / "api"
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in sorted(API.glob("*.md")))
MODULES = re.findall(r"automodule:: (\S+)", TEXT)
DATA = set(re.findall(r"py:data:: (\S+)", TEXT))
PACKAGES = [
    "jaxattn",
    *(x.__name__ for x in (getattr(jaxattn, name) for name in jaxattn.__all__) if inspect.ismodule(x)),
    "jaxattn.lab.diagnosis",
    "jaxattn.lab.books",
    "jaxattn.lab.results",
]
# Modules that are not public, and the names that code in sweeps/ uses from them.
NOT_PUBLIC = {
    "jaxattn.lab.books.metrics": "names of cells, for a measure that is one of the package's and a row more",
    "jaxattn.lab.results.fits": "exponents of power laws, seed by seed",
    "jaxattn.lab.results.intervals": "the interval of a share",
    "jaxattn.lab.results.judge": "estimates with intervals, which a `Finding` holds",
    "jaxattn.lab.results.statistics": "the last step of every run",
    "jaxattn.lab.results.style": "the style and colours of the package's figures",
}


def public(module):
    """Return the public names of a module with their objects."""
    names = getattr(module, "__all__", None) or [
        name
        for name, x in vars(module).items()
        if (inspect.isclass(x) or inspect.isroutine(x)) and x.__module__ == module.__name__
    ]
    return {name: getattr(module, name) for name in names if not name.startswith("_")}


def test_every_public_module_has_a_page():
    """Return the public names of an object."""
    below = {
        f"{package}.{name}": x.__name__
        for package in PACKAGES
        for name, x in public(importlib.import_module(package)).items()
        if inspect.ismodule(x) and not name.startswith("_")
    }
    modules = {name: name for name in PACKAGES} | below
    assert {name for name, own in modules.items() if not {name, own} & {*MODULES, *DATA}} == set()


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_a_docstring(name):
    module = importlib.import_module(name)
    assert inspect.getdoc(module)
    missing = []
    for short, x in public(module).items():
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


def used(path):
    """Yield the jaxattn modules that a Python file uses, with the attribute names of each use."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    roots = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "jaxattn":
            yield from ((node.module, [alias.name]) for alias in node.names)
        elif isinstance(node, ast.Import):
            own = [alias for alias in node.names if alias.name.partition(".")[0] == "jaxattn"]
            roots |= {alias.asname or "jaxattn" for alias in own}
            yield from (("jaxattn", alias.name.split(".")[1:]) for alias in own)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root, *names = ast.unparse(node).split(".")
            if root in roots:
                yield "jaxattn", names


def private(module, names):
    """Return the first module on the path to an object that is not public, or None."""
    for name in names:
        if module not in (*MODULES, *PACKAGES) or name not in public(importlib.import_module(module)):
            whole = f"{module}.{name}"
            return whole if whole in NOT_PUBLIC else module
        found = getattr(importlib.import_module(module), name)
        if not inspect.ismodule(found):
            return None
        module = found.__name__
    return None


def test_code_in_sweeps_uses_public_names_only():
    found = {
        (private(module, names), f"{path.relative_to(ROOT)}: {'.'.join([module, *names])}")
        for path in (ROOT / "sweeps").rglob("*.py")
        for module, names in used(path)
    }
    assert {what for where, what in found if where not in (None, *NOT_PUBLIC)} == set()
    assert {where for where, _ in found} - {None} == set(NOT_PUBLIC)
    # Names are found, also behind attributes.
    assert {what.partition(": ")[2] for where, what in found if where is None} >= {
        "jaxattn.theory.max_margin_from_constraints", "jaxattn.theory.selection"
    }  # fmt: skip
