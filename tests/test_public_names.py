"""Every public name is documented, and has its place in the reference."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import jaxattn

API = Path(__file__).parents[1] / "docs" / "reference" / "api"
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in sorted(API.glob("*.md")))
MODULES = re.findall(r"automodule:: (\S+)", TEXT)
DATA = set(re.findall(r"py:data:: (\S+)", TEXT))
PACKAGES = [
    "jaxattn",
    *(x.__name__ for name in jaxattn.__all__ if inspect.ismodule(x := getattr(jaxattn, name))),
    "jaxattn.lab.diagnosis",
    "jaxattn.lab.books",
    "jaxattn.lab.results",
]


def public(module):
    """Names that a module calls its own, and what they are."""
    names = getattr(module, "__all__", None) or [
        name
        for name, x in vars(module).items()
        if (inspect.isclass(x) or inspect.isroutine(x)) and x.__module__ == module.__name__
    ]
    return {name: getattr(module, name) for name in names if not name.startswith("_")}


def test_every_public_module_has_its_page():
    below = [
        x.__name__
        for package in PACKAGES
        for name, x in public(importlib.import_module(package)).items()
        if inspect.ismodule(x) and not name.startswith("_")
    ]
    assert {name for name in [*PACKAGES, *below] if name not in MODULES and name not in DATA} == set()


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_says_what_it_is(name):
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
