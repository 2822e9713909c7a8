"""Studies of other papers, as shipped in sweeps/neighbours: what they state holds in a short run."""

import math
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxattn as ja

SHIPPED = Path(__file__).parents[1] / "sweeps" / "neighbours"
NAMES = sorted(path.name for path in SHIPPED.iterdir() if path.is_dir())


def read(name, *overrides):
    return ja.Study.read(SHIPPED / name / "study.toml", overrides)


@pytest.fixture
def run(tmp_path):
    """Run a neighbour with changes; give metrics at the end, (seeds,), or at a step, by name."""

    def make(name, *overrides):
        results = read(name, *overrides).run(tmp_path / name, quiet=True)
        assert results.failures.empty

        def at(metric, step=None):
            rows = results.records[results.records["metric"] == metric]
            rows = rows[rows["step"] == (rows["step"].max() if step is None else step)]
            return rows.sort_values("seed")["value"].to_numpy()

        return at

    return make


@pytest.mark.parametrize("name", NAMES)
def test_each_is_short_and_is_checked_as_shipped(name):
    lines = (SHIPPED / name / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 100
    assert read(name).own_kinds
    readme = (SHIPPED / name / "README.md").read_text(encoding="utf-8")
    assert f"jaxattn run sweeps/neighbours/{name}/study.toml" in readme


def test_attention_is_an_svm(run):
    """W / ‖W‖ comes near the certified direction as attention saturates."""
    at = run("attention_svm", "seeds=4", "phases.train.steps=600")
    assert (at("feasible") == 1).all()
    assert (at("duality_gap") < 1e-9).all()
    start, end = at("one_minus_cosine", 0), at("one_minus_cosine")
    assert (end < 0.05).all()
    assert (end < start / 5).all()
    assert (at("largest_attention") > 0.99).all()


def test_facts_are_recalled_after_relations(run):
    """The relation is known when no answer is: the order of the paper, and log K at the start."""
    at = run("factual_recall", "phases.train.steps=400", "phases.train.fresh=256", "data.test_sequences=512")
    np.testing.assert_allclose(at("test_loss", 0), math.log(32), rtol=1e-4)
    assert at("relation_known", 0) < 0.5
    assert at("relation_known") == 1
    assert at("subject_known") < 0.3
    assert at("test_accuracy") < 0.3


def test_a_fact_is_its_subject_and_relation():
    """Answers by a loop over sequences of tokens."""
    data = read("factual_recall").dataset(0).train
    for ids, answer in zip(np.asarray(data.ids), np.asarray(data.targets), strict=True):
        (subject,) = (s for s in ids if s < 16)
        (relation,) = (s - 16 for s in ids if 16 <= s < 20)
        assert ids[-1] == 40
        assert answer == subject // 2 + 8 * relation


def test_overfitting_is_benign(run):
    """Flipped labels are fitted and test data are right all the same; noise tokens fit what is flipped."""
    overrides = ("data.dim=400", "phases.train.step_size=0.05", "phases.train.steps=400")
    at = run("benign_overfitting", *overrides, "data.test_sequences=200")
    assert at("train_accuracy") == 1
    assert at("test_accuracy") > 0.95
    assert at("attention_clean") > 0.9
    assert at("attention_flipped") < 0.3


def test_a_single_location_is_found(run):
    """|ν| comes to 1, and |κ| to 1 but for terms of λ²: .98 at λ = 0.1, where d is large."""
    overrides = ("phases.train.steps=2500", "phases.train.fresh=32", "phases.train.step_size=0.01")
    at = run("single_location", *overrides, "seeds=2")
    assert (at("kappa", 0) < 0.5).all()
    assert (at("kappa") > 0.85).all()
    assert (at("nu") > 0.97).all()
    assert (at("test_loss") < at("test_loss", 0) / 2).all()


def test_targets_of_a_single_location_are_linear_in_its_token():
    data = read("single_location", "data.noise=0.0").dataset(1).train
    X, y = np.asarray(data.X), np.asarray(data.targets)
    place = X[:, :, 0].argmax(axis=1)  # √(d/2) = 6.3 stands out
    np.testing.assert_allclose(y, X[np.arange(len(y)), place, 1], rtol=1e-5)
    assert jax.numpy.isfinite(data.X).all()
