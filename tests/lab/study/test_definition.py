"""Studies as tables: invalid tables raise at once, with place and remedy."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxattn as ja
from jaxattn.lab.storage.batch_record import FORMAT
from jaxattn.lab.study import toml
from jaxattn.lab.study.definition import Definition
from jaxattn.lab.study.import_paths import ImportPaths

AXES = {"model.dim": [8, 16], "phases.query.step_size": [0.1, 0.2, 0.3]}


@pytest.fixture
def load(tables):
    def make(*overrides):
        tree = tables(axes=dict(AXES))
        toml.change(tree, overrides)
        return Definition(tree)

    return make


def test_hash_depends_only_on_settings_that_affect_results(load):
    base = load().config_hash
    assert load("seeds=7", "description=other", "name=other", "chunk=3").config_hash == base
    assert load("phases.0.step_size=51").config_hash != base
    assert load("data.test_sequences=22").config_hash != base
    assert load("probes.per_decade=7").config_hash != base
    # Explicit defaults define the same study.
    assert load("data.label_noise=0.0", "loss.kind=classification").config_hash == base


def test_hash_does_not_depend_on_file_locations(tables):
    def of(**data):
        return Definition(tables(data={"kind": "csv", "path": "a.csv"} | data)).config_hash

    assert of() == of(path="b.csv")
    assert of() != of(text="words")


def test_hash_does_not_depend_on_class_names(load):
    file = Path(__file__).parents[3] / "sweeps" / "imdb_one_layer.toml"
    names = 'data.class_names=["worse", "better"]'
    plain = toml.read_sweep(file).config_hash
    assert toml.read_sweep(file, (names,)).config_hash == plain
    assert toml.read_sweep(file, ("data.labels=[1, 0]",)).config_hash != plain


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.vocabsize=3", r"data: unknown key 'vocabsize'; did you mean 'vocab_size'\?"),
        (
            "phases.query.stepsize=3",
            r"phases\[1\]: stepsize: not an option of sgd; did you mean 'step_size'\?",
        ),
        (
            "phases.query.optimizr=adam",
            r"phases\[1\]: optimizr: not an option of sgd; did you mean 'optimizer'\?",
        ),
        (
            "phases.query.momentun=0.5",
            r"phases\[1\]: momentun: not an option of sgd; did you mean 'momentum'\?",
        ),
        ("phases.embed.stepsize=3", r"phases\[0\]: unknown key 'stepsize'; did you mean 'step_size'\?"),
        ("modle.dim=3", r"unknown key 'modle'; did you mean 'model'\?"),
        ("probes.bin=3", r"probes: unknown key 'bin'; did you mean 'bins'\?"),
        ("data.kind=assumption", r"data.kind: unknown 'assumption'; did you mean 'assumption1'\?"),
        ("model.kind=one_layers", r"model.kind: unknown 'one_layers'; did you mean 'one_layer'\?"),
        ("phases.1.kind=decent", r"phases\[1\].kind: unknown 'decent'; did you mean 'descent'\?"),
        ("loss.kind=hing", r"loss.kind: unknown 'hing'; did you mean 'hinge'\?"),
        ("phases.1.optimizer=adamm", r"phases\[1\]: optimizer: unknown optimiser 'adamm'; did you mean"),
        ("phases.1.momentum=big", r"phases\[1\]: momentum: expected a number for sgd, got 'big'"),
        ("phases.1.momentum=[1]", r"phases\[1\]: momentum: expected a number for sgd, got \[1\]"),
        ("phases.1.optimizer=[]", r"phases\[1\]: optimizer: expected a name .*, got \[\]"),
        ("phases.1.optimizer={a = 1}", r"phases\[1\]: optimizer: expected a name .*, got"),
        ("dtype=float16", r"dtype: invalid enum value 'float16'; did you mean 'float"),
        ("model.dim=0", r"model.dim: expected 'int' >= 1"),
        ("model.dim=-4", r"model.dim: expected 'int' >= 1, got -4$"),
        ("model.dim=big", r"model.dim: invalid enum value 'big'; known: a number, inf"),
        ("model.dim=1.5", r"model.dim: expected 'int .* str', got 'float'"),
        ("model.init.p.scal=2.0", r"model.init.p"),
        ("model.init.q.scale=2.0", r"model.init: the model has no parameter 'q'; choose one of E, p, v"),
        ("data.num_classes=1", r"data.num_classes: expected 'int' >= 2"),
        ("data.relevant=20", r"^data: vocab_size: 20 leaves no irrelevant token"),
        ("seeds=0", r"seeds: expected 'int' >= 1, got 0$"),
        ("seeds=[3, -1]", r"seeds\[1\]: expected 'int' >= 0, got -1$"),
        ("phases=[]", r"phases: expected 'array' of length >= 1, got \[\]$"),
        ("axes.model.dim=[]", r"axes.model.dim: the list is empty; add at least one value$"),
        ("axes.model.dim=16", r"axes.model.dim: 16 is not a list; use a list, such as \[16\]$"),
        ("axes.model.dim=[8, 16, 8]", r"axes.model.dim: 8 is listed twice; list each value once$"),
        ("zip.model.dim=3", r"zip.model.dim: 3 is not a list"),
        ("blocks.a.axes.model.dim=3", r"blocks.a: axes.model.dim: 3 is not a list"),
        ("dim=3", r"unknown key 'dim'; did you mean 'model.dim'\?$"),
        ("dimension=3", r"unknown key 'dimension'; did you mean 'description'\?$"),
        (
            "step_size=3",
            r"unknown key 'step_size'; did you mean 'phases.embed.step_size' or 'phases.query.step_size'\?$",
        ),
        ("axes.model.dims=[3]", r"axes: cell 0 \(.*model.dims = 3.*\): model: unknown key 'dims'; did you"),
        ("axes.model.dim=[8, -1]", r"axes: cell 3 \(model.dim = -1, .*\): model.dim: expected 'int' >= 1"),
        ("axes.seeds=[1, 2]", r"seeds cannot be swept"),
        (
            "phases.other.steps=3",
            r"phases.other.steps: unknown entry 'other'; expected a name, or an index from 0 to 1",
        ),
        ("phases.1.name=embed", r"two phases are named 'embed'"),
        ("phases.1.train=['q']", r"phases\[1\].train: q: not a parameter of the model; known: E, p, v"),
        ("probes.low=2.0", r"probes.low: must be below"),
        ("probes.own=['nosuch']", r"probes.own\[0\].kind: unknown 'nosuch'"),
        ("name=../up", r"name: expected letters, digits"),
        ("model", r"expected key=value"),
        ("model.dim.deep=3", r"model.dim.deep: .*plain value"),
    ],
)
def test_invalid_tables_raise_errors_with_location_and_remedy(load, override, message):
    with pytest.raises(ja.InputError, match=message) as caught:
        load(override)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("seeds", "expected"), [(3, (0, 1, 2)), ("4:7", (4, 5, 6)), ([9, 2, 4], (2, 4, 9))], ids=str
)
def test_seeds_can_be_a_number_a_range_or_a_list(tables, seeds, expected):
    assert Definition(tables(seeds=seeds)).seeds == expected


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ("5:3", "seeds: 5:3 is an empty range; .* such as '3:6'$"),
        ([], "seeds: empty; list at least one"),
        ([1, 1], "seeds: a seed is listed twice"),
        ("many", "seeds: "),
        (10**7, "seeds"),
        ("0:9999999", "more than 1,000,000"),
    ],
)
def test_invalid_seeds_raise(tables, seeds, message):
    with pytest.raises(ja.InputError, match=message):
        Definition(tables(seeds=seeds))


def test_numpy_values_in_tables_are_plain_settings(tables):
    plain = tables("small", seeds=[2, 5], axes={"model.dim": [4, 8]})
    numeric = tables("small", seeds=np.array([2, 5]), axes={"model.dim": [np.int32(4), np.int64(8)]})
    numeric["phases"] = [
        {key: np.asarray(x)[()] if isinstance(x, int | float) else x for key, x in phase.items()}
        for phase in numeric["phases"]
    ]
    assert Definition(numeric).config == Definition(plain).config


def test_config_recreates_the_study(study):
    before = study()
    config = json.loads(json.dumps(before.config))
    assert config["data"]["label_noise"] == 0.0
    assert config["phases"][1]["schedule"] == "constant"
    assert config["probes"]["important"] == 0.5
    assert config["loss"]["kind"] == "classification"
    again = Definition(config)
    assert again.config == before.config
    assert again.config_hash == before.config_hash


def test_custom_code_is_listed(study):
    assert study("own").custom_kinds == sorted(
        f"mine.py:{name}"
        for name in (
            *("pairs", "Turned", "constant", "softened", "clipped", "Wander", "spread", "Travelled"),
            *("Longest", "last_losses"),
        )
    )
    assert study().custom_kinds == []
    # Only one cell uses it.
    axes = {"loss.kind": ["logistic", "mine.py:broken"]}
    assert study(axes=axes).custom_kinds == ["mine.py:broken"]


def test_reading_results_imports_no_code(tmp_path, tables):
    """Creating a study imports its custom code; reading a results folder does not."""
    (tmp_path / "run").mkdir()
    bomb = tmp_path / "bomb.py"
    bomb.write_text("raise SystemExit('imported')\n")
    config = tables(model={"kind": f"{bomb}:Model"})
    content = {"format": FORMAT, "name": "x", "command": "x", "config": config, "seeds": [0]}
    content |= {"cells": [{"cell": 0, "settings": {}, "key": "0" * 32}]}
    (tmp_path / "run" / "study.json").write_text(json.dumps(content))
    with pytest.raises(SystemExit, match="imported"):
        Definition(config, ImportPaths(tmp_path))
    code = (
        "import sys; from pathlib import Path; from jaxattn.lab.results.read import read_results\n"
        "try:\n    read_results(Path(sys.argv[1]))\nexcept ValueError as error:\n    print(error)\n"
        "assert not [name for name in sys.modules if name.startswith('bomb')]\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "has no measurements yet" in done.stdout


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
KEYS = st.text(max_size=5)
JUNK = st.recursive(LEAVES, lambda x: st.lists(x, max_size=2) | st.dictionaries(KEYS, x, max_size=2))


def check_mutations_of_a_tree(text, data):
    mutated = tomllib.loads(text) | {"axes": {"model.dim": [8]}}
    for _ in range(data.draw(st.integers(1, 3))):
        place = mutated
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = data.draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
                place = place[key]
                continue
            break
        place[key] = data.draw(JUNK)
    message = ""
    try:
        _ = Definition(mutated).cells
    except ja.InputError as error:
        message = str(error)
    assert "\n" not in message


SMALL = (Path(__file__).parents[2] / "sweeps" / "small.toml").read_text()


@settings(max_examples=100, deadline=None)
@given(st.data())
@pytest.mark.more
def test_mutated_tables_raise_one_line_errors(data):
    check_mutations_of_a_tree(SMALL, data)


@pytest.mark.slow
@settings(max_examples=1_000, deadline=None)
@given(st.data())
def test_more_mutated_tables_raise_one_line_errors(data):
    check_mutations_of_a_tree(SMALL, data)


@pytest.mark.exhaustive
@settings(max_examples=7_000, deadline=None)
@given(st.data())
def test_many_mutated_tables_raise_one_line_errors(data):
    check_mutations_of_a_tree(SMALL, data)
