"""The scripts in .ci: minimum versions, Python versions and commands that they use."""

import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
BASH = shutil.which("bash")


@pytest.mark.skipif(BASH is None, reason="no bash")
def test_every_requirement_has_a_minimum_version():
    command = [BASH, ROOT / ".ci" / "lowest", "--list"]
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert all(re.fullmatch(r"[\w.-]+==[\d.]+", line) for line in lines)
    names = [line.partition("==")[0] for line in lines]
    assert {"jax", "numpy", "pytest"} <= set(names)
    assert len(set(names)) == len(names)


def test_jax_0_11_1_is_excluded():
    """On a CPU, this version copies a whole array to write a few of its bytes in a loop."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    every = [requirement for requirement in map(Requirement, lines) if requirement.name in ("jax", "jaxlib")]
    assert {requirement.name for requirement in every} == {"jax", "jaxlib"}
    for requirement in every:
        # Python 3.11 has no version after 0.11.0.
        if not requirement.marker or requirement.marker.evaluate({"python_version": "3.12"}):
            assert list(requirement.specifier.filter(["0.11.1", "0.11.2", "0.12.0.1"])) == [
                "0.11.2",
                "0.12.0.1",
            ]


@pytest.mark.skipif(BASH is None, reason="no bash")
def test_newest_python_is_found_without_pyenv(tmp_path):
    # The output of pyenv for a version that is not active.
    (tmp_path / "python3.14").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "python3.14").chmod(0o755)
    (tmp_path / "python3").symlink_to(sys.executable)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYENV_ROOT": str(tmp_path), "HOME": str(tmp_path)}
    command = [BASH, ROOT / ".ci" / "readme", "--newest"]
    done = subprocess.run(command, env=path, capture_output=True, text=True, check=True)
    (found,) = done.stdout.splitlines()
    print_version = "import sys; print(*sys.version_info[:2])"
    version = subprocess.run([found, "-c", print_version], capture_output=True, text=True, check=True).stdout
    assert tuple(map(int, version.split())) >= sys.version_info[:2]


def test_constraints_pin_one_version_per_package_and_python():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()[1:]
    places = {}
    for line in lines:
        name, _, rest = line.partition("==")
        places.setdefault(name.lower(), []).append(rest.partition("; ")[2])
    early, late = 'python_version < "3.12"', 'python_version >= "3.12"'
    assert all(sorted(markers) in ([""], [early], [early, late]) for markers in places.values())


@pytest.mark.skipif(BASH is None, reason="no bash")
def test_scripts_parse_and_unknown_sets_of_checks_are_refused():
    for script in sorted((ROOT / ".ci").iterdir()):
        subprocess.run([BASH, "-n", script], check=True)
    done = subprocess.run([BASH, ROOT / ".ci" / "run", "log"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "log: not a set of checks; use none or long\n"


@pytest.mark.skipif(BASH is None, reason="no bash")
def test_changed_book_items_are_checked_and_run(tmp_path):
    """A program in place of jaxattn prints its arguments; it fails for --check of the item `bad`."""
    program = tmp_path / "bin" / "jaxattn"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$@"\ncase "$*" in *bad*--check*) exit 1 ;; esac\n')
    program.chmod(0o755)
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "items", tmp_path / ".ci")

    def git(*words):
        user = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *user, *words], cwd=tmp_path, capture_output=True, check=True)

    def add(*names):
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("a")
        git("add", "--all")
        git("commit", "-m", "a")

    def run():
        path = {"PATH": f"{program.parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
        command = [BASH, tmp_path / ".ci" / "items", "first", "out"]
        return subprocess.run(command, env=path, capture_output=True, text=True)

    git("init", "--quiet")
    add("sweeps/mine/old/item.toml", "results/published/mine/items/new.json")
    git("tag", "first")
    add(
        "sweeps/mine/new/item.toml", "sweeps/mine/new/mine.py", "sweeps/mine/common.toml", "sweeps/small.toml"
    )
    done = run()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "mine: new",
        "reproduce mine --only new --check --out results/published/mine",
        "reproduce mine --only new --out out/mine --quiet",
    ]
    add("sweeps/mine/bad/item.toml")
    done = run()
    assert done.returncode == 1
    assert "reproduce mine --only bad --out out/mine --quiet" in done.stdout
