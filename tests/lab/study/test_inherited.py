"""A subclass with its own methods does not inherit what its base class states about its methods."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.lab import kinds
from jaxattn.lab.study import seed
from jaxattn.lab.study.setting import pads_vocabulary

DATA = ja.data.Independent(vocab_size=20, relevant=8, length=8, sequences=30)
STATED = [
    (ja.models.OneLayer, "token_rows", ("E",), ()),
    (ja.models.TwoLayer, "token_rows", ("E",), ()),
    (ja.data.Independent, "pads_vocabulary", True, False),
    (ja.dynamics.OneStep, "one_step", True, False),
    (ja.dynamics.OneStep, "rotation_invariant", True, ja.Phase.rotation_invariant),
    (ja.dynamics.ExactFlow, "rotation_invariant", True, ja.Phase.rotation_invariant),
    (
        ja.dynamics.Descent,
        "rotation_invariant",
        ja.dynamics.Descent.rotation_invariant,
        ja.Phase.rotation_invariant,
    ),
    (kinds.load_kind(kinds.PROBES["norms"]), "rotation_invariant", True, False),
]


@pytest.mark.parametrize(("base", "name", "stated", "default"), STATED)
def test_subclass_that_defines_a_method_inherits_no_statement_about_methods(base, name, stated, default):
    def method(self):
        return 1

    def made(parent, **namespace):
        return getattr(type(parent)("Custom", (parent,), namespace, frozen=True, kw_only=True), name)

    assert getattr(base, name) == stated
    assert made(base, labels={}) == stated
    for own in (method, property(method), staticmethod(method), classmethod(method)):
        assert made(base, method=own) == default
    assert made(base, method=method, **{name: stated}) == stated
    plain = type(base)("Plain", (base,), {"labels": {}}, frozen=True, kw_only=True)
    assert made(plain, method=method) == default


class Centred(ja.models.OneLayer, frozen=True, kw_only=True):
    """Embeddings minus their mean over the vocabulary, so the outputs depend on the number of tokens."""

    def outputs(self, params, data):
        E = params.E - params.E.mean(axis=0)
        return ja.attention.attend(data, E @ params.p, E @ params.v)


class Signs(ja.dynamics.Descent, frozen=True, kw_only=True):
    """Steps of fixed length along each axis of R^d."""

    def step(self, task, state):
        moved = super().step(task, state).params.p
        p = state.params.p + 0.01 * jnp.sign(moved - state.params.p)
        return state.replace(params=state.params.replace(p=p))


class Negative(ja.models.OneLayer, frozen=True, kw_only=True):
    """Attention that prefers tokens with small E·p."""

    def scores_and_values(self, params):
        return -params.E @ params.p, params.E @ params.v


def first_loss(model, centred, negative=False):
    """Compute the mean logistic loss of seed 0 at its start in a loop over sequences."""
    data_key, start_key, _ = seed.keys(0)
    corpus = jax.jit(DATA.draw)(data_key).train
    params = model.init(start_key, corpus, dtype=jnp.float32)
    E, p, v = (np.asarray(x, float) for x in (params.E, params.p, params.v))
    E = E - E.mean(axis=0) if centred else E
    scores, found = (-E @ p if negative else E @ p), []
    for counts, label in zip(np.asarray(corpus.counts()), np.asarray(corpus.targets), strict=True):
        weights = counts * np.exp(scores)
        found.append(np.log1p(np.exp(-label * (weights @ (E @ v)) / weights.sum())))
    return np.mean(found)


@pytest.mark.more
@pytest.mark.parametrize(
    ("kind", "expected"), [(Centred, {"centred": True}), (Negative, {"centred": False, "negative": True})]
)
def test_study_of_a_subclass_of_a_built_in_model_computes_its_function(tmp_path, kind, expected):
    phase = ja.dynamics.OneStep(name="q", step_size=1.0)
    study = ja.Study(name="x", seeds=1, data=DATA, model=kind(dim=4), phases=[phase])
    assert not pads_vocabulary(study.base)
    records = study.run(tmp_path / "out", quiet=True).records
    (found,) = records.query("metric == 'loss' and step == 0")["value"]
    assert found == pytest.approx(first_loss(kind(dim=4), **expected), rel=1e-6)
    assert abs(found - first_loss(ja.models.OneLayer(dim=4), centred=False)) > 1e-4


@pytest.mark.more
def test_study_of_a_subclass_of_a_built_in_phase_uses_the_axes_of_its_parameters(tmp_path):
    phase = Signs(name="q", train=["p"], optimizer="sgd", step_size=1.0, steps=5)
    model = ja.models.OneLayer(dim=64)
    study = ja.Study(name="x", seeds=1, data=DATA, model=model, phases=[phase])
    found = study.run(tmp_path / "out", quiet=True).params(seed=0).p
    data_key, start_key, _ = seed.keys(0)
    corpus = jax.jit(DATA.draw)(data_key).train
    start = model.init(start_key, corpus, dtype=jnp.float32)
    np.testing.assert_allclose(jnp.abs(found - start.p).max(), 0.05, rtol=1e-5)
    expected = ja.dynamics.run(phase, ja.dynamics.Task(model, data=corpus), start).params.p
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_subclass_of_the_logistic_loss_with_another_value_is_not_the_logistic_loss():
    class Hinge(ja.losses.Logistic, frozen=True, kw_only=True):
        def __call__(self, outputs, targets):
            return jnp.maximum(0, 1 - outputs * targets)

    class Named(ja.losses.Logistic, frozen=True, kw_only=True):
        labels: ClassVar = {}

    assert ja.losses.is_logistic(Named())
    assert not ja.losses.is_logistic(Hinge())
    flow = ja.dynamics.ExactFlow(name="f", until_norm=5.0)
    with pytest.raises(ja.InputError, match="requires the logistic loss"):
        ja.Study(name="x", data=DATA, model=ja.models.OneLayer(dim=4), loss=Hinge(), phases=[flow])
