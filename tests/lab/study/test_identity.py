"""Identities of runs: everything that determines results, and nothing else."""

import shutil
import sys
from pathlib import Path

import pytest

import jaxattn as ja
from jaxattn.lab.study import identity
from jaxattn.lab.study.identity import identities, package_hash
from jaxattn.lab.study.import_paths import ImportPaths


def of(study):
    """Return the identity of the only cell of a study."""
    (found,) = identities(study)[0].values()
    return found


def test_identity_depends_on_all_settings_that_determine_results(study, tables):
    first, last = tables()["phases"]
    changes = [
        {},
        {"dtype": "float64"},
        {"data": tables()["data"] | {"sequences": 32}},
        {"data": tables()["data"] | {"test_sequences": 22}},
        {"model": {"kind": "one_layer", "dim": 8}},
        {"model": {"kind": "one_layer", "dim": 16, "init": {"p": "zero"}}},
        {"loss": "hinge"},
        {"loss": {"kind": "classification", "smoothing": 0.1}},
        {"phases": [first]},
        {"phases": [last]},
        {"phases": [first, last | {"step_size": 0.2}]},
        {"phases": [first, last | {"momentum": 0.5}]},
        {"phases": [first, last | {"optimizer": "adam"}]},
        {"phases": [first, last | {"steps": 21}]},
        {"phases": [first, last | {"name": "other"}]},
        {"phases": [first | {"step_size": 49.0}, last]},
        {"probes": {"min_count": 2}},
        {"probes": {"min_count": 1, "per_decade": 3}},
        {"hold": ["data"]},
        {"hold": ["start"]},
    ]
    found = [of(study(**change)) for change in changes]
    for field in ("key", "setting", "config"):
        assert len({getattr(one, field) for one in found}) == len(found), field


def test_identity_does_not_depend_on_what_is_only_asked_for_or_shown(study, tables):
    expected = of(study())
    for change in (
        {"seeds": 7},
        {"seeds": [3]},
        {"chunk": 1},
        {"description": "other"},
        {"figures": [{"kind": "curves", "metrics": ["loss"]}]},
        {"data": tables()["data"] | {"label_noise": 0.0}},
        {"loss": {"kind": "classification"}},
    ):
        assert of(study(**change)) == expected, change
    assert of(ja.Study.from_tables(tables() | {"name": "other"})) == expected


def test_cells_have_the_identities_of_studies_without_axes(study, tables):
    axes = {"phases.query.step_size": [0.1, 0.2], "model.dim": [16, 8]}
    found = identities(study(axes=axes))[0]
    assert list(found) == [0, 1, 2, 3]
    assert len({one.key for one in found.values()}) == 4
    first, last = tables()["phases"]
    for number, (step_size, dim) in enumerate([(0.1, 16), (0.1, 8), (0.2, 16), (0.2, 8)]):
        phases = [first, last | {"step_size": step_size}]
        assert found[number] == of(study(phases=phases, model={"kind": "one_layer", "dim": dim}))
    assert found[0] == of(study())
    # The same settings in several blocks are the same runs.
    both = identities(study(blocks={"one": {}, "two": {}}))[0]
    assert both[0] == both[1] == of(study())


def with_last(study, **changes):
    first, last = study().tree["phases"]
    data = study().tree["data"] | {"validation_sequences": 10}
    return study(phases=[first, last | changes], data=data)


def test_identity_without_the_length_of_the_last_phase(study, tables):
    one, longer = of(with_last(study, steps=20)), of(with_last(study, steps=30))
    assert (one.steps, longer.steps) == (20, 30)
    assert one.shorter == longer.shorter
    assert one.shorter not in ("", one.key, one.setting)
    assert one.key != longer.key
    assert of(with_last(study, steps=20, step_size=0.2)).shorter != one.shorter
    for changes in ({"schedule": "cosine"}, {"schedule": "linear"}, {"patience": 2}):
        found = of(with_last(study, **changes))
        assert (found.shorter, found.steps) == ("", 0)
    assert of(with_last(study, schedule="inverse_sqrt", warmup=3)).shorter
    # Only the last phase may be longer.
    last = tables()["phases"][1]
    twice = [of(study(phases=[last | {"steps": steps}, last | {"name": "again"}])) for steps in (20, 30)]
    assert twice[0].shorter != twice[1].shorter
    assert of(study("flow")).shorter == ""


def test_length_of_one_phase_does_not_hide_a_change_of_another_setting(study, tables):
    changes = (
        {},
        {"dtype": "float64"},
        {"data": tables()["data"] | {"sequences": 32}},
        {"probes": {"min_count": 2}},
        {"hold": ["data"]},
        {"model": {"kind": "one_layer", "dim": 8}},
    )
    assert len({of(study(**change)).shorter for change in changes}) == len(changes)


def test_identity_depends_on_the_modules_of_the_package_that_compute(study, monkeypatch):
    before = of(study())
    monkeypatch.setattr(identity, "package_hash", lambda: "another")
    after = of(study())
    assert before.key != after.key
    assert before.shorter != after.shorter
    assert (before.setting, before.config) == (after.setting, after.config)


def test_modules_that_compute_are_hashed_and_others_are_not(monkeypatch):
    found = {path.relative_to(identity._PACKAGE).as_posix() for path in identity._computing()}
    expected = {
        "attention/pooling.py",
        "data/splits.py",
        "dynamics/descents/descent_phase.py",
        "lab/engine/batch_run.py",
        "lab/engine/programs.py",
        "lab/engine/records.py",
        "lab/probes/standard.py",
        "lab/study/seed.py",
    }
    known = {path.relative_to(identity._PACKAGE).as_posix() for path in identity._PACKAGE.rglob("*.py")}
    assert expected & known <= found
    assert len(expected & known) >= 7
    assert not [name for name in found if name.startswith(("lab/results/", "lab/cli/", "lab/storage/"))]
    assert {"lab/api.py", "lab/engine/run_study.py"}.isdisjoint(found)
    outside = {name for name in known if not name.startswith("lab/")}
    assert outside <= found


def test_hash_of_the_package_changes_with_the_contents_and_names_of_modules(tmp_path, monkeypatch):
    (tmp_path / "lab" / "probes").mkdir(parents=True)
    for name in ("probes/a.py", "study.py"):
        (tmp_path / "lab" / name).write_text("x = 1")
    (tmp_path / "a.py").write_text("x = 1")
    monkeypatch.setattr(identity, "_PACKAGE", tmp_path)
    monkeypatch.setattr(identity, "_LAB", ("probes",))
    monkeypatch.setattr(identity, "_ENGINE", ())
    hashes = []

    def note():
        package_hash.cache_clear()
        hashes.append(package_hash())

    try:
        note()
        (tmp_path / "lab" / "study.py").write_text("x = 2")
        note()
        assert hashes[0] == hashes[1]
        (tmp_path / "lab" / "probes" / "a.py").write_text("x = 2")
        note()
        (tmp_path / "a.py").rename(tmp_path / "b.py")
        note()
        assert len(set(hashes)) == 3
    finally:
        package_hash.cache_clear()


NOTEBOOK = """
import threading
import jax.numpy as jnp
import jaxattn as ja

SCALE = {scale}
LOCK = threading.Lock()


def helper(x):
    return {factor} * x


def closing(shift):
    def add(x):
        return x + shift
    return add


add = closing({shift})


class Softened(ja.Loss):
    hardness: float = 1.0

    def __call__(self, outputs, targets):
        return jnp.logaddexp(0, {sign}outputs * helper(add(SCALE * targets))){reads}
"""
PLAIN = {"scale": 1.0, "factor": 1.0, "shift": 0.0, "sign": "-", "reads": ""}


def notebook(tables, hardness=1.0, **changes):
    """Make a study with a loss from a notebook cell, a module without a file."""
    cell = {"__name__": "a_notebook"}
    exec(NOTEBOOK.format(**PLAIN | changes), cell)
    tree = tables(loss={"kind": "__main__:Softened", "hardness": hardness})
    return ja.Study.from_tables(tree, ImportPaths(given={"__main__:Softened": cell["Softened"]}))


def test_identity_depends_on_a_class_and_on_the_globals_helpers_and_closures_that_it_uses(tables):
    before = of(notebook(tables))
    assert before == of(notebook(tables))
    changes = [{}, {"sign": "-2 * "}, {"scale": 2.0}, {"factor": 2.0}, {"shift": 0.5}]
    found = [of(notebook(tables, **change)) for change in changes]
    assert len({one.key for one in found}) == len({one.shorter for one in found}) == len(changes)
    assert {one.setting for one in found} == {before.setting}
    assert of(notebook(tables, hardness=2.0)).setting != before.setting


FILE = """
import jax.numpy as jnp
from {module} import scaled


def loss(logits, labels):
    return jnp.logaddexp(0, -labels * scaled(logits))
"""


def in_file(folder, tables, factor, module):
    # As in another process, and without bytecode, which Python may use if files are written too quickly.
    for name, loaded in list(sys.modules.items()):
        if Path(getattr(loaded, "__file__", None) or "/").parent == folder:
            del sys.modules[name]
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    (folder / f"{module}.py").write_text(f"def scaled(x):\n    return {factor} * x\n")
    (folder / "mine_of_identity.py").write_text(FILE.format(module=module))
    return ja.Study.from_tables(tables(loss="mine_of_identity.py:loss"), ImportPaths(folder))


def test_identity_depends_on_files_that_custom_code_imports(tmp_path, tables):
    made = in_file(tmp_path, tables, 1.0, "helper_of_identity")
    before, hashes = of(made), identities(made)[1]
    assert list(hashes) == ["mine_of_identity.py:loss"]
    (tmp_path / "unrelated.py").write_text("x = 1")
    assert of(in_file(tmp_path, tables, 1.0, "helper_of_identity")) == before
    changed = in_file(tmp_path, tables, 2.0, "helper_of_identity")
    assert of(changed).key != before.key
    assert of(changed).setting == before.setting
    assert identities(changed)[1] != hashes
    assert of(in_file(tmp_path, tables, 1.0, "helper_of_identity")) == before


def test_only_cells_that_use_custom_code_depend_on_it(tables, monkeypatch):
    def study(**changes):
        cell = {"__name__": "a_notebook"}
        exec(NOTEBOOK.format(**PLAIN | changes), cell)
        tree = tables(axes={"loss.kind": ["logistic", "__main__:Softened"]})
        return ja.Study.from_tables(tree, ImportPaths(given={"__main__:Softened": cell["Softened"]}))

    before, after = (identities(study(**changes))[0] for changes in ({}, {"scale": 2.0}))
    assert (before[0] == after[0], before[1] == after[1]) == (True, False)


def test_code_without_a_hash_is_that_of_one_process(tables, monkeypatch):
    made = notebook(tables, reads=" + 0 * LOCK.locked()")
    found, code = identities(made)
    assert code == {"__main__:Softened": None}
    assert found == identities(made)[0]
    monkeypatch.setattr(identity, "_UNKNOWN", "another process")
    other = identities(made)[0]
    assert found[0].key != other[0].key
    assert found[0].setting == other[0].setting


def test_custom_code_of_every_kind_is_in_the_identity(study):
    made = study("own")
    _, code = identities(made)
    # A figure does not determine results.
    assert set(code) == set(made.custom_kinds)
    for name in set(code) - {"mine.py:last_losses"}:
        hashes = {path: made.names.code_hash(path) for path in code} | {name: "changed"}
        names = made.names
        changed = type("Names", (), {"code_hash": lambda self, path, hashes=hashes: hashes[path]})()
        before = of(made)
        made.names = changed
        try:
            assert of(made).key != before.key, name
        finally:
            made.names = names


@pytest.mark.parametrize("name", ["small", "flow", "own"])
def test_identities_are_hashes_and_the_same_each_time(study, name):
    found = of(study(name))
    assert found == of(study(name))
    for text in (found.key, found.setting):
        assert len(text) == 32
        assert int(text, 16) >= 0


@pytest.mark.parametrize("setting", ["objective = 'mine.py:f'", "clamps = { attention = 'mine.py:f' }"])
def test_an_edited_objective_or_clamp_is_another_run(tmp_path, setting, monkeypatch):
    """Also if the file has the same size and time, with which Python would use its bytecode again."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    sweep = f"""
        name = "edited"
        seeds = 1
        data = {{ kind = "independent", vocab_size = 9, relevant = 4, length = 4, sequences = 8 }}
        model = {{ kind = "one_layer", dim = 4 }}
        [[phases]]
        name = "sgd"
        kind = "descent"
        train = ["p"]
        optimizer = "sgd"
        step_size = 0.1
        steps = 2
        {setting}
    """
    (tmp_path / "study.toml").write_text(sweep)
    found = set()
    for factor in (1, 2):
        (tmp_path / "mine.py").write_text(f"def f(x, task):\n    return {factor} * x\n")
        found.add(of(ja.Study.read(tmp_path / "study.toml")).key)
    assert len(found) == 2
