import tempfile
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxattn.errors import InputError
from jaxattn.study import sweepfile

SHIPPED = sorted((Path(__file__).parents[2] / "sweeps").glob("*.toml"))
SMALL = (Path(__file__).with_name("small.toml")).read_text()
AXES = """
[axes]
model.dim = [8, 16]
"phases.query.step_size" = [0.1, 0.2, 0.3]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL + AXES)
    return path


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_sweeps_are_valid(path):
    assert sweepfile.load(path).name == path.stem


def test_cells_are_the_product_of_the_axes(file):
    cells = sweepfile.cells(sweepfile.load(file))
    assert [cell.number for cell in cells] == list(range(6))
    assert cells[4].settings == {"model.dim": 16, "phases.query.step_size": 0.2}
    assert cells[4].config.model.dim == 16
    assert cells[4].config.phases[1].step_size == 0.2
    assert cells[4].config.phases[0].step_size == 50


def test_overrides_are_typed_dotted_and_may_be_lists(file):
    sweep = sweepfile.load(
        file,
        [
            "model.dim=32",
            "phases.query.train=['p', 'v']",
            "phases.0.step_size=1e3",
            "axes.model.dim=[4]",
            "dtype=float64",
            "data.kind=assumption1",
        ],
    )
    assert sweep.model.dim == 32
    assert sweep.phases[1].train == ("p", "v")
    assert sweep.phases[0].step_size == 1000
    assert sweep.axes["model.dim"] == (4,)
    assert sweep.dtype == "float64"
    assert type(sweep.data).__name__ == "Assumption1"


def test_hash_depends_on_what_changes_numbers_only(file):
    base = sweepfile.config_hash(sweepfile.load(file))
    assert sweepfile.config_hash(sweepfile.load(file, ["seeds=7", "description=other"])) == base
    assert sweepfile.config_hash(sweepfile.load(file, ["phases.0.step_size=51"])) != base


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.vocabsize=3", r"data: unknown key 'vocabsize'; did you mean 'vocab_size'\?"),
        ("phases.query.stepsize=3", r"phases\[1\]: unknown key 'stepsize'; did you mean 'step_size'\?"),
        ("modle.dim=3", r"unknown key 'modle'; did you mean 'model'\?"),
        ("probes.bin=3", r"probes: unknown key 'bin'; did you mean 'bins'\?"),
        ("data.kind=assumption", r"data.kind: invalid value 'assumption'; did you mean 'assumption1'\?"),
        ("phases.1.optimizer=adan", r"phases\[1\].optimizer: invalid enum value 'adan'; did you mean 'adam'"),
        ("dtype=float16", r"dtype: invalid enum value 'float16'; did you mean 'float"),
        ("model.dim=0", r"model.dim: expected 'int' >= 1"),
        ("model.dim=-4", r"model.dim: expected 'int' >= 1"),
        ("model.dim=big", r"model.dim: expected 'int', got 'str'"),
        ("model.dim=1.5", r"model.dim: expected 'int', got 'float'"),
        ("data.num_classes=1", r"data.num_classes: expected 'int' >= 2"),
        ("seeds=0", r"seeds: expected 'int' >= 1"),
        ("axes.model.dim=[]", r"axes.*: expected 'array' of length >= 1"),
        ("axes.model.dims=[3]", r"axes: cell 0 \(.*model.dims = 3.*\): model: unknown key 'dims'; did you"),
        ("axes.model.dim=[8, -1]", r"axes: cell 3 \(model.dim = -1, .*\): model.dim: expected 'int' >= 1"),
        ("axes.seeds=[1, 2]", r"seeds cannot be an axis"),
        ("phases.other.steps=3", r"phases.other.steps: no entry 'other' in the list; there are embed, query"),
        ("phases.1.name=embed", r"two phases are named 'embed'"),
        ("phases.1.train=['q']", r"phases\[1\].train: 'q' is not one of E, p, v"),
        ("probes.low=2.0", r"probes.low: 2.0 is not below"),
        ("name=../up", r"name: expected 'str' matching"),
        ("model", r"expected key=value"),
        ("model.dim.deep=3", r"model.dim.deep: .*plain value"),
    ],
)
def test_mistakes_are_named_with_place_and_remedy(file, override, message):
    with pytest.raises(InputError, match=message) as caught:
        sweepfile.load(file, [override])
    assert "\n" not in str(caught.value)


def test_missing_and_malformed_files_are_named(tmp_path, file):
    with pytest.raises(InputError, match=r"smal.toml: no such sweep file; did you mean .*small.toml"):
        sweepfile.load(tmp_path / "smal.toml")
    file.write_text("name = ")
    with pytest.raises(InputError, match="not valid TOML"):
        sweepfile.load(file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not valid TOML"):
        sweepfile.load(file)
    with pytest.raises(InputError, match="cannot be read"):
        sweepfile.load(tmp_path)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
KEYS = st.text(max_size=5)
JUNK = st.recursive(LEAVES, lambda x: st.lists(x, max_size=2) | st.dictionaries(KEYS, x, max_size=2))


PIECES = st.sampled_from(
    ["[", "]", "[[", "=", '"', "\n", "#", ".", ",", "{", "}", "1e999", "nan", "\0", "é", "-"]
)


@settings(max_examples=3_000, deadline=None)
@given(st.data())
def test_no_mutation_of_the_text_of_a_file_escapes_as_anything_but_one_clear_line(data):
    """Pieces are cut out, doubled, or put in anywhere."""
    text = SMALL + AXES
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 30)))
        middle = data.draw(st.sampled_from(["", text[start:end] * 2]) | PIECES | st.text(max_size=5))
        text = text[:start] + middle + text[end:]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.toml"
        path.write_bytes(text.encode("utf-8", "replace"))
        message = ""
        try:
            sweepfile.load(path)
        except InputError as error:
            message = str(error)
    assert "\n" not in message.replace(folder, "")


@settings(max_examples=7_000, deadline=None)
@given(st.data())
def test_no_mutation_of_a_tree_escapes_as_anything_but_one_clear_line(data):
    mutated = tomllib.loads(SMALL) | {"axes": {"model.dim": [8]}}
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
        sweepfile.cells(sweepfile.check(mutated))
    except InputError as error:
        message = str(error)
    assert "\n" not in message
