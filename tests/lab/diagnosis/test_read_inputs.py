"""The corpus of a [data] table matches the sweep seed; texts are counted with any vocabulary."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.lab.diagnosis import read_corpus
from jaxattn.lab.study import seed as one_seed
from jaxattn.lab.study import toml

DATA = '[data]\nkind = "independent"\nvocab_size = 20\nrelevant = 6\nlength = 5\nsequences = 40\n'
REST = (
    'name = "x"\nseeds = 3\n{data}[model]\nkind = "one_layer"\ndim = 8\n'
    '[[phases]]\nname = "a"\nkind = "one_step"\nstep_size = 1.0\n'
)


@pytest.fixture
def texts(tmp_path):
    rows = [("Good film", 1), ("bad film", 0), ("good good", 1), ("a bad one", 0)]
    lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "texts.toml").write_text(f'[data]\nkind = "jsonl"\npath = "{tmp_path / "a.jsonl"}"\n')
    return tmp_path / "texts.toml"


def message(*arguments, **settings):
    with pytest.raises(ja.InputError) as caught:
        read_corpus(*arguments, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.more
def test_synthetic_corpus_is_the_one_sampled_by_the_sweep_for_the_seed(tmp_path, seed):
    (tmp_path / "whole.toml").write_text(REST.format(data=DATA))
    (tmp_path / "data.toml").write_text(DATA)
    (tmp_path / "other.toml").write_text('extends = "whole.toml"\nname = "y"\nmodel.dim = 4\n')
    setting = toml.read_sweep(tmp_path / "whole.toml").base
    expected = one_seed.draw_data(setting, one_seed.keys(seed)[0]).train
    for name in ("whole.toml", "data.toml", "other.toml"):
        corpus, tokens = read_corpus(tmp_path / name, seed=seed)
        assert len(tokens) == 20
        for x, y in zip(jax.tree.leaves(corpus), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_texts_are_encoded_with_the_model_vocabulary(texts, tmp_path, encoding):
    learnt, words = read_corpus(texts)
    assert words == ("good", "bad", "film", "a", "one")
    (tmp_path / "words.txt").write_text("film\n[PAD]\ngood\n\nbad\n", encoding=encoding)
    corpus, tokens = read_corpus(texts, vocabulary=tmp_path / "words.txt")
    assert tokens == ("film", "[PAD]", "good", "", "bad")
    dense = np.asarray(corpus.bags.matmul(jnp.eye(5)))
    assert dense.tolist() == [[1, 0, 1, 0, 0], [1, 0, 0, 0, 1], [0, 0, 2, 0, 0], [0, 0, 0, 0, 1]]
    assert corpus.targets.tolist() == learnt.targets.tolist()


def test_unreadable_input_is_rejected(texts, tmp_path):
    (tmp_path / "bad.toml").write_text("[data")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    (tmp_path / "other.txt").write_text("x\ny\n")
    (tmp_path / "empty.toml").write_text('name = "x"\n')
    assert "no such sweep file" in message(tmp_path / "none.toml")
    assert "no [data] table" in message(tmp_path / "empty.toml")
    assert "not valid TOML" in message(tmp_path / "bad.toml")
    assert "cannot be read" in message(texts, vocabulary=tmp_path / "none.txt")
    assert "save it as UTF-8" in message(texts, vocabulary=tmp_path / "latin.txt")
    assert "this row contains no word of the vocabulary" in message(texts, vocabulary=tmp_path / "other.txt")
    assert "unknown key 'pth'" in message(texts, overrides=["data.pth=3"])
    assert "expected data.KEY=VALUE" in message(texts, overrides=["model.dim=3"])
    (tmp_path / "drawn.toml").write_text(DATA)
    assert "does not contain text" in message(tmp_path / "drawn.toml", vocabulary=tmp_path / "other.txt")


def test_custom_corpus_is_imported_from_the_folder_of_its_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import jaxattn as ja\n\ndef corpus(*, vocab_size: int):\n"
        "    return ja.data.from_sequences([[0, 1], [2]], labels=[1, -1], vocab_size=vocab_size)\n"
    )
    (tmp_path / "own.toml").write_text('[data]\nkind = "mine.py:corpus"\nvocab_size = 3\n')
    corpus, tokens = read_corpus(tmp_path / "own.toml", overrides=["data.vocab_size=4"])
    assert tokens == ("0", "1", "2", "3")
    assert corpus.num_examples == 2


@pytest.mark.parametrize(
    ("mark", "name"), [("##", "WordPiece"), ("Ġ", "byte-level BPE"), ("▁", "SentencePiece"), ("", "")]
)
def test_vocabulary_of_subwords_is_explained(texts, tmp_path, mark, name):
    words = ["[PAD]", "good", "film", "bad", f"{mark}ing", f"{mark}ed", "#"]
    (tmp_path / "words.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    notes = []
    read_corpus(
        texts, vocabulary=tmp_path / "words.txt", progress=lambda text, done, total: notes.append(text)
    )
    notes = [note for note in notes if "begin with" in note]
    assert len(notes) == bool(mark)
    if mark:
        assert f"2 of 7 tokens begin with {mark!r}, such as '{mark}ing' ({name})" in notes[0]
        assert "tokenise the texts with the model's tokeniser" in notes[0]
