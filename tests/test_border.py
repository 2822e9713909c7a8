"""The library works if the lab and the dependencies of the lab cannot be imported."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Flax itself imports rich, so it is imported first.
BLOCKED = """
import sys
import flax, optax

names = ("pandas", "pyarrow", "orbax", "matplotlib", "jinja2", "tyro", "rich", "tensorflow_datasets")
names += ("jaxattn.lab",)

def below(module):
    return any(module == name or module.startswith(f"{name}.") for name in names)

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if below(name):
            raise ModuleNotFoundError(f"blocked: {name}", name=name)

for name in [name for name in sys.modules if below(name)]:
    del sys.modules[name]
sys.meta_path.insert(0, Blocked())
"""
AFTER = """
print(mm.feasible, ja.theory.certify_limit(scores, path.p[-1], path.selection).holds)
print(*[name for name in ("diffrax", "matfree") if name in sys.modules])
"""


def run(code):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


def readme():
    return re.search(r"```python\n(import jax, jaxattn as ja.*?)```", (ROOT / "README.md").read_text(), re.S)[
        1
    ]


@pytest.mark.more
def test_library_runs_without_the_dependencies_of_the_lab():
    done = run(BLOCKED + readme() + AFTER)
    assert done.returncode == 0, done.stderr
    angle, certified, slow = done.stdout.split("\n")[:3]
    assert abs(float(angle)) < 1e-6
    assert certified == "True True"
    assert slow == ""


def test_blocked_packages_cannot_be_imported():
    code = """
for name in ("pandas", "jaxattn.lab.study"):
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        print(error)
"""
    done = run(BLOCKED + code)
    assert done.stdout.splitlines() == ["blocked: pandas", "blocked: jaxattn.lab"], done.stderr


def test_names_in_the_lab_are_listed_without_importing_it():
    code = "import sys, jaxattn as ja\n"
    code += "print(*(name in dir(ja) for name in ('Study', 'load', 'probes', 'explore')))"
    code += "\nprint('texts' in dir(ja), any(name.startswith('jaxattn.lab') for name in sys.modules))"
    code += "\nprint(ja.texts.Csv.__name__, ja.Study.__name__, ja.probes.__name__)"
    done = run(code)
    assert done.stdout.splitlines() == [
        "True True True True",
        "True False",
        "Csv Study jaxattn.lab.probes",
    ], done.stderr
