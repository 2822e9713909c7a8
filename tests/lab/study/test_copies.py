"""Copies of built-in functions in files of a user give the results of the built-in kinds."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.lab.study.import_paths import ImportPaths

PACKAGE = Path(ja.__file__).parent
FILES = {"my_data.py": "data/synthetic.py", "my_losses.py": "losses.py", "my_starts.py": "models/starts.py"}
SIZES = {"vocab_size": 12, "relevant": 4, "length": 4, "sequences": 12, "test_sequences": 8}
GENERATORS = {
    "independent": {"data.max_posterior_difference": [0.5, 0.9]},
    "multi_relevant": {},
}
NEEDED = {"multi_relevant": {"relevant_per_sequence": 2}}


@pytest.fixture
def study(tables, tmp_path):
    for mine, own in FILES.items():
        shutil.copy(PACKAGE / own, tmp_path / mine)

    def make(mine, generator="independent", loss="exponential", axes=None, **changes):
        data, losses, starts = (f"{name}:" if mine else "" for name in FILES)
        parts = {
            "seeds": 2,
            "data": SIZES | NEEDED.get(generator, {}) | {"kind": f"{data}{generator}", "label_noise": 0.1},
            "model": {
                "kind": "one_layer",
                "dim": 4,
                "init": {"p": {"kind": f"{starts}scaled", "scale": 2.0}},
            },
            "loss": {"kind": f"{losses}{loss}", "smoothing": 0.1},
            "axes": {"data.vocab_size": [8, 12], "loss.smoothing": [0.1, 0.2]} | (axes or {}),
        }
        return ja.Study.from_tables(tables(**parts | changes), ImportPaths(tmp_path))

    return make


@pytest.mark.parametrize(("generator", "axes"), GENERATORS.items(), ids=GENERATORS)
@pytest.mark.more
def test_copied_function_gives_bitwise_identical_results(study, tmp_path, generator, axes):
    axes = axes | {"model.init.p.scale": [0.5, 2.0]}
    results = []
    for mine in (False, True):
        made = study(mine, generator, axes=axes)
        # The vocabulary is padded only for built-in functions.
        wanted = set(axes) | {"loss.smoothing"} | (set() if mine else {"data.vocab_size"})
        for varied in made.plan(tmp_path / "planned", quick=True).groups["vmapped"]:
            assert wanted <= set(varied.split(", "))
        results.append(made.run(tmp_path / f"out_{mine}", quiet=True))
    built_in, copied = results
    pd.testing.assert_frame_equal(built_in.records, copied.records, check_exact=True)
    pd.testing.assert_frame_equal(built_in.tokens, copied.tokens, check_exact=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequences": 13}, "data: sequences: 13 is not a positive multiple of num_classes = 2"),
        (
            {"test_sequences": 13},
            "data: test_sequences: sequences: 13 is not a positive multiple of num_classes = 2",
        ),
        ({"vocab_size": 3}, "data: vocab_size: 3 leaves no irrelevant token"),
        ({"length": 2**20, "sequences": 2**12}, "data: length: 4,096 sequences of 1,048,576 tokens total"),
        ({"max_posterior_difference": 1.5}, "data.max_posterior_difference: expected 'float' <= 1.0"),
    ],
)
def test_copied_function_raises_the_same_errors(study, changes, message):
    for mine in (False, True):
        data = study(mine).tree["data"] | changes
        with pytest.raises(ja.InputError, match=message):
            study(mine, data=data, axes={"data.vocab_size": [data["vocab_size"]]})


def test_padded_vocabulary_must_match_the_vocab_size_setting(study, tmp_path):
    (tmp_path / "larger.py").write_text(
        "import jaxattn as ja\n"
        "def larger(key, *, vocab_size: int, sequences: int, used=None):\n"
        "    return ja.data.xor(key, vocab_size=vocab_size + 1, length=3, sequences=sequences, used=used)\n"
    )
    data = {"kind": "larger.py:larger", "vocab_size": 12, "sequences": 8}
    with pytest.raises(
        ja.InputError,
        match=r"the padded vocabulary has V = 16, but the sampled data have V = 17",
    ):
        study(False, data=data, axes={"data.vocab_size": [12]}).plan(tmp_path / "out", quick=True)


def test_padded_vocabulary_requires_the_vocab_size_setting(study, tmp_path):
    (tmp_path / "sizeless.py").write_text(
        "def sizeless(key, *, sequences: int, used=None):\n    return None\n"
    )
    with pytest.raises(
        ja.InputError, match="the function takes 'used', so it requires the setting 'vocab_size'"
    ):
        study(False, data={"kind": "sizeless.py:sizeless", "sequences": 8}, axes={"loss.smoothing": [0.1]})


def test_file_paths_are_relative_to_the_sweep_file(study, tmp_path):
    (tmp_path / "reads.py").write_text(
        "import jaxattn as ja\n"
        "def reads(key, drawn, *, file: ja.FilePath, more: tuple[ja.FilePath, ...] = (), plain: str = ''):\n"
        "    return drawn\n"
    )
    start = {"kind": "reads.py:reads", "file": "a.npz:E", "more": ["b", "/c"], "plain": "d"}
    made = study(False, model={"kind": "one_layer", "dim": 4, "init": {"p": start}}, axes={})
    found = made.base.starts["p"]
    assert (found.file, found.more) == (f"{tmp_path}/a.npz:E", (f"{tmp_path}/b", "/c"))
    assert found.plain == "d"
    assert made.config["model"]["init"]["p"]["file"] == "a.npz:E"
