import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.core.errors import InputError
from jaxattn.data.splits import Loaded, Splits
from jaxattn.dynamics import ExactFlow, JointFlow
from jaxattn.models import OneLayer
from jaxattn.probes import FlowLimit
from jaxattn.theory import one_minus_cosine

pytestmark = pytest.mark.usefixtures("x64")


def two_seeds():
    def draw(key):
        data_key, model_key = jax.random.split(key)
        corpus = ja.data.independent(data_key, vocab_size=12, relevant=6, length=5, sequences=60)
        params = ja.models.one_layer.init(model_key, vocab_size=12, dim=24, dtype=jnp.float64)
        return ja.dynamics.one_step(params, corpus, step_size=100.0), corpus

    return jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), 2))


def conclude(history, params, corpora):
    loaded = Loaded(Splits(corpora), False, list("abcdefghijkl"))
    return FlowLimit().conclude(history, params, OneLayer(dim=3), loaded)


def test_it_is_the_certificate_of_the_end_of_the_path():
    params, corpora = two_seeds()
    path = ja.dynamics.exact_flow(ja.theory.scores.one_layer(params, corpora), params.p, points=8)
    history = np.array(path.p)
    on_the_way, end = conclude(history, params, corpora)
    for seed in range(2):
        own, corpus, chosen = jax.tree.map(lambda x, seed=seed: x[seed], (params, corpora, path.selection))
        expected = ja.theory.certify_limit(ja.theory.scores.one_layer(own, corpus), history[seed, -1], chosen)
        away = one_minus_cosine(history[seed], expected.direction.p)
        np.testing.assert_allclose(on_the_way["limit_one_minus_cosine"][seed], away, atol=1e-12)
        assert end["limit_feasible"][seed] == expected.holds
        assert end["limit_certified_distance"][seed] >= away[-1]
        assert end["tied_sequences"][seed] == (np.asarray(chosen.counts(corpus)) > 1).mean()
    assert end["tied_sequences"].max() > 0
    history[1] = np.nan
    on_the_way, end = conclude(history, params, corpora)
    assert np.isnan(on_the_way["limit_one_minus_cosine"]).any(axis=1).tolist() == [False, True]
    assert np.isnan(end["limit_feasible"]).tolist() == [False, True]


def test_it_looks_at_the_logistic_loss_and_p_alone(applies):
    model, loss, probe = OneLayer(dim=3), ja.losses.Classification(), FlowLimit()
    assert applies(probe, model, loss, ExactFlow(name="a"))
    assert not applies(probe, model, loss, JointFlow(name="b"))
    assert not applies(probe, model, ja.losses.Classification(smoothing=0.1), ExactFlow(name="a"))
    assert not applies(probe, ja.models.Mlp(dim=3), loss, ExactFlow(name="a"))


def test_a_seed_with_nan_does_not_stop_the_others():
    params, corpora = two_seeds()
    path = ja.dynamics.exact_flow(ja.theory.scores.one_layer(params, corpora), params.p, points=8)
    history = np.array(path.p)
    expected = conclude(history, params, corpora)
    broken = params.replace(E=params.E.at[0, 3].set(jnp.nan))
    found = conclude(history, broken, corpora)
    for before, after in zip(expected, found, strict=True):
        for name in before:
            assert np.isnan(after[name][0]).all()
            np.testing.assert_array_equal(after[name][1], before[name][1])


def test_heads_that_do_not_fit_the_classes_are_named():
    params, corpora = two_seeds()
    with pytest.raises(InputError, match=r"scores.values: shape \(12,\); give \(12, 3\)"):
        conclude(np.zeros((2, 4, 24)), params, corpora.replace(num_classes=3))
