"""Components of the study of the window of η0, compared with loops; and the tables of its note."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.lab import books

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "sweeps" / "findings" / "label_window"
PUBLISHED = ROOT / "results" / "published" / "label_window"
SIZES = {"vocab_size": 16, "relevant": 6, "length": 5, "sequences": 24}


@pytest.fixture(scope="module")
def mine():
    spec = importlib.util.spec_from_file_location("label_window_mine", FOLDER / "mine.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.more
def test_equal_counts_satisfy_assumption_1(mine):
    corpus = mine.equal_counts(jax.random.key(0), **SIZES)
    ids, _ = ja.models.reference.padded_sequences(corpus)
    labels, held = np.asarray(corpus.targets), Counter()
    for row, label in zip(np.asarray(ids), labels, strict=True):
        (own,) = [s for s in row if s < 6]
        assert label == (1 if own % 2 else -1)
        held[int(own)] += 1
    assert held == dict.fromkeys(range(6), 4)
    assert (np.asarray(ja.data.average_signed_frequency(corpus))[6:] == 0).all()


@pytest.mark.slow
def test_probe_matches_a_loop(mine, tmp_path):
    """`pull` by differences of the loss, and shares by a loop over sequences, for d above and below V + 2."""
    for dim in (12, 64):
        study = mine.study("random", [3], dim=dim, step_size=60.0, sizes=SIZES)
        results = study.run(tmp_path / str(dim), quiet=True)
        data, params = results.dataset(seed=3, cell=0).train, results.params(cell=0, seed=3)
        E, p, v = (np.asarray(x, np.float64) for x in (params.E, params.p, params.v))
        ids, y = np.asarray(ja.models.reference.padded_sequences(data)[0]), np.asarray(data.targets)
        scores, values = E @ p, E @ v
        selects = np.array([row[np.argmax(scores[row])] < 6 for row in ids])
        records = results.records.query("phase == 'query'")
        last = records[records["step"] == records["step"].max()].set_index("metric")["value"]
        assert last["selected_negative"] == pytest.approx(selects[y < 0].mean())
        assert last["selected_positive"] == pytest.approx(selects[y > 0].mean())
        assert last["kept"] == pytest.approx(min(selects[y < 0].mean(), selects[y > 0].mean()))
        held = [sorted(Counter(row[0] for row in np.sort(ids[y == label])).values()) for label in (-1, 1)]
        assert last["rarest"] == pytest.approx(held[1][0] - held[0][0])

        def loss(t, ids=ids, y=y, scores=scores, values=values):
            a = (scores + t * values)[ids]
            q = np.exp(a - a.max(axis=1, keepdims=True))
            f = (q * values[ids]).sum(axis=1) / q.sum(axis=1)
            return np.logaddexp(0, -y * f).mean()

        slope = -(loss(1e-6) - loss(-1e-6)) / 2e-6
        assert last["pull"] == pytest.approx(slope, rel=1e-4, abs=1e-9)


def test_balanced_loss_interpolates_mean_and_maximum(mine):
    rng = np.random.default_rng(0)
    f, y = rng.normal(size=20), np.tile([-1, 1], 10)
    each = np.log1p(np.exp(-y * f))
    means = [each[y == label].mean() for label in (-1, 1)]
    assert float(mine.Balanced(beta=1e-3)(jnp.asarray(f), jnp.asarray(y))) == pytest.approx(
        each.mean(), rel=1e-3
    )
    much = float(mine.Balanced(beta=1e4)(jnp.asarray(f), jnp.asarray(y)))
    assert much == pytest.approx(max(means), rel=1e-3)


@pytest.mark.more
def test_lost_labels_are_measured_in_a_short_run(tmp_path):
    item = books.read_book(FOLDER.parent).item("label_window")
    axes = 'axes={"phases.step.step_size"=[200.0, 800.0]}'
    results = item.study("full", overrides=["seeds=2", axes]).run(tmp_path / "run", quiet=True)
    found, _ = item.measure({"study": results})
    assert [(x.id, x.text.partition(": ")[2], x.counts) for x in found] == [
        ("eta0=200", "seeds in which no label is ignored", (2, 2)),
        ("eta0=800", "seeds in which a label is ignored", (2, 2)),
    ]


def test_documentation_page_contains_the_published_tables():
    page = (ROOT / "docs" / "notes" / "which_label.md").read_text(encoding="utf-8")
    tables = sorted(PUBLISHED.glob("*.md"))
    assert tables
    for table in tables:
        assert table.read_text(encoding="utf-8").strip() in page, table.name
