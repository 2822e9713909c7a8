"""Every public name is documented in the reference; code in sweeps/ uses public names only."""

import importlib
import inspect
import re
from pathlib import Path

import pytest
from jaxattn.lab.books.public_names import (
    FOR_MEASURES,
    private_module,
    private_uses,
    public_modules,
    public_names,
    used_names,
)

from jaxattn.core.errors import InputError

ROOT = Path(__file__).parents[1]
API = ROOT / "docs" / "reference" / "api"
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in sorted(API.glob("*.md")))
MODULES = re.findall(r"automodule:: (\S+)", TEXT)
DATA = set(re.findall(r"py:data:: (\S+)", TEXT))


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
        ("from jaxattn.lab.results import judge, layout", ["jaxattn.lab.results.layout"]),
        ("from jaxattn.lab.results.judge import _Words", ["jaxattn.lab.results.judge._Words"]),
        ("import jaxattn.lab.books\nfrom jaxattn.lab import books\njaxattn.lab.books.mean", []),
        ("import jaxattn.lab.engine.run", ["jaxattn.lab.engine.run"]),
        (
            "import jaxattn\njaxattn.lab.engine.run.f",
            ["jaxattn.lab.engine.run.f", "jaxattn.lab.engine.run", "jaxattn.lab.engine"],
        ),
        ("def f():\n    from jaxattn.theory import _private", ["jaxattn.theory._private"]),
    ],
)
def test_uses_of_private_names_are_found(tmp_path, code, private):
    (tmp_path / "mine.py").write_text(code)
    assert private_uses(tmp_path / "mine.py") == private


def test_file_that_cannot_be_parsed_is_rejected(tmp_path):
    (tmp_path / "mine.py").write_text("a =\n")
    with pytest.raises(InputError, match=r"mine\.py: line 1: invalid syntax"):
        private_uses(tmp_path / "mine.py")
