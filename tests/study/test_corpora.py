"""Every kind of generator from the data table of a sweep file to records."""

import json
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from jaxattn.errors import InputError
from jaxattn.study import corpora, describe, groups, run, sweepfile
from jaxattn.study.progress import Reporter

SIZES = {"vocab_size": 16, "length": 5, "sequences": 24, "test_sequences": 24, "validation_sequences": 24}
CLASSES = SIZES | {"relevant": 6}
KINDS = {
    "assumption1": CLASSES,
    "multi_relevant": CLASSES | {"relevant_per_sequence": 2},
    "independent": CLASSES,
    "topics": CLASSES | {"topic_words": 3},
    "xor": SIZES | {"pairs": 2},
    "negation": CLASSES,
}


def quiet(*_):
    pass


def sweep(kind, data=(), **changes):
    tree = tomllib.loads(Path(__file__).with_name("small.toml").read_text())
    table = {"kind": kind} | KINDS[kind] | dict(data)
    fixed = {"data": table, "phases": tree["phases"][:1], "figures": [], "dtype": "float64"}
    return sweepfile.check(tree | fixed | changes)


def go(directory, wanted):
    with Reporter(quiet=True) as reporter:
        assert not run.run_sweep(wanted, directory, command="test", reporter=reporter).failures
    return pd.read_parquet(directory / "records.parquet")


def load(config, **numbers):
    keys = corpora.seed_keys([0])[0]
    lanes = {("data", field): jnp.asarray([x]) for field, x in numbers.items()}
    return jax.tree.map(lambda x: x[0], corpora.load(config.data, keys, quiet, lanes).corpora)


def same(left, right):
    return all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    )


@pytest.mark.parametrize(
    ("kind", "number"), [("topics", "min_purity"), ("xor", "label_noise"), ("negation", "negated")]
)
def test_a_sweep_over_numbers_runs_as_lanes_equal_to_cells_alone(kind, number, tmp_path):
    wanted = sweep(kind, axes={f"data.{number}": [0.0, 0.5], "data.vocab_size": [16, 20]})
    cells = sweepfile.cells(wanted)
    assert len(groups.groups(cells)) == 1
    records = go(tmp_path / "together", wanted)
    assert json.loads((tmp_path / "together" / "manifest.json").read_text())["widths"] == [8]
    which = 2 if kind == "negation" else 0
    alone = go(tmp_path / "alone", sweepfile.check(sweepfile.plain(cells[which].config) | {"seeds": [1]}))
    mine = records[(records.cell == which) & (records.seed == 1)]
    assert mine["metric"].tolist() == alone["metric"].tolist()
    np.testing.assert_allclose(mine["value"], alone["value"], rtol=1e-10, atol=1e-10)
    last = alone[alone.step == 1].set_index("metric")["value"]
    assert np.isfinite(last[["loss", "test_loss", "p_norm", "log_gradient_norm"]]).all()
    # The cell of an xor without noise, or with half its sequences negated: no token has a signal.
    correlations = last[["correlation_Ev_alpha", "spearman_Ev_tokens", "spearman_Ep_tokens"]]
    assert correlations.isna().all() == (kind != "topics")
    assert (last["important_mass"] == 0) == (kind != "topics")


@pytest.mark.parametrize("kind", ["independent", "topics", "negation"])
def test_noise_is_in_training_and_validation_labels_and_without_it_corpora_are_as_drawn(kind):
    many = dict.fromkeys(("sequences", "test_sequences", "validation_sequences"), 120)
    config = sweep(kind, many)
    clean, noisy = (load(config, label_noise=noise) for noise in (0.0, 0.3))
    train_key, test_key = jax.random.split(corpora.seed_keys([0])[0][0])
    assert same(clean.train, corpora.generate(config.data, train_key, 120))
    assert same(clean.test, corpora.generate(config.data, test_key, 120))
    assert same(clean.test, noisy.test)
    flipped = []
    for before, after in ((clean.train, noisy.train), (clean.validation, noisy.validation)):
        assert same(before.replace(labels=after.labels), after)
        flipped.append(np.asarray(before.labels != after.labels))
        assert abs(flipped[-1].mean() - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 120)
    assert not np.array_equal(*flipped)
    bags = [np.asarray(corpus.bags.index) for corpus in (clean.train, clean.validation, clean.test)]
    assert not any(np.array_equal(bags[i], bags[i - 1]) for i in range(3))


def test_without_validation_sequences_there_is_no_validation_corpus():
    keys = corpora.seed_keys([0])[0]
    data = sweep("xor", {"validation_sequences": 0, "test_sequences": 0}).data
    drawn = jax.eval_shape(lambda: corpora.load(data, keys, quiet).corpora)
    assert drawn.validation is None
    assert drawn.test is None


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("xor", {"sequences": 6}, "sequences: 6 is not a positive multiple of 4"),
        ("xor", {"validation_sequences": 6}, "sequences: 6 is not a positive multiple of 4"),
        ("negation", {"test_sequences": 6}, "sequences: 6 is not a positive multiple of 4"),
        ("negation", {"vocab_size": 7}, "vocab_size: 7"),
        ("topics", {"topic_words": 6}, "length: 5 tokens cannot hold 6"),
        ("multi_relevant", {"relevant_per_sequence": 4}, "relevant_per_sequence: 4"),
    ],
)
def test_sizes_that_do_not_fit_are_named_before_anything_is_drawn(kind, change, message, monkeypatch):
    monkeypatch.setattr(corpora, "generate", None)
    with pytest.raises(InputError, match=message):
        corpora.check(sweep(kind, change).data)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("xor", {"label_noise": 0.6}, "data.label_noise: expected 'float' <= 0.5"),
        ("xor", {"relevant": 4}, "data: unknown key 'relevant'; did you mean"),
        ("negation", {"negated": 1.5}, "data.negated: expected 'float' <= 1.0"),
        ("topics", {"num_classes": 1}, "data.num_classes: expected 'int' >= 2"),
    ],
)
def test_impossible_values_are_named(kind, change, message):
    with pytest.raises(InputError, match=message):
        sweep(kind, change)


def text_sweep(tmp_path, **fields):
    rows = [{"text": f"{'good' if i % 2 else 'bad'} film {i % 5}", "label": i % 2} for i in range(40)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree = tomllib.loads(Path(__file__).with_name("small.toml").read_text())
    return sweepfile.check(tree | {"data": {"kind": "jsonl", "path": str(path)} | fields, "figures": []})


def test_a_validation_split_of_texts_is_loaded_and_described(tmp_path):
    wanted = text_sweep(tmp_path, validation=0.25)
    loaded = corpora.load(wanted.data, corpora.seed_keys([0])[0], quiet)
    assert loaded.corpora.validation.num_sequences == 10
    assert loaded.corpora.train.num_sequences == 30
    assert loaded.corpora.test is None
    ((_, sizes), *_) = describe.corpus(wanted, 1, quiet)
    assert sizes["split"].tolist() == ["train", "validation"]
    without = corpora.load(text_sweep(tmp_path).data, corpora.seed_keys([0])[0], quiet)
    assert without.corpora.validation is None
    assert corpora.is_text(wanted.data)
    assert not any(corpora.is_text(sweep(kind).data) for kind in KINDS)
