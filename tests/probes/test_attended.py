"""Attention of every query, against a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn import losses
from jaxattn.base import Task
from jaxattn.data import Vectors
from jaxattn.data.splits import Splits
from jaxattn.probes import Attended, ProbeContext


class Queries(ja.Model[Vectors]):
    """Three queries q (3, d) over the tokens; the third asks nothing in the first example."""

    takes = Vectors

    def attention(self, params, data):
        scores = jnp.einsum("ntd,qd->nqt", data.X, params["q"])
        return jax.nn.softmax(scores, axis=-1).at[0, 2].set(jnp.nan)

    def outputs(self, params, data):
        return data.X.sum((1, 2))


@pytest.mark.parametrize("spread", [0.0, 3.0, 1e3])
def test_equals_a_loop_over_queries(rng, x64, spread):
    X, q = rng.normal(size=(7, 5, 4)), spread * rng.normal(size=(3, 4))
    data = Vectors(targets=jnp.ones(7, jnp.int32), X=jnp.asarray(X), classes=2)
    task = Task(Queries(), losses.DEFAULT, Splits(data))
    phase = ja.dynamics.Descent(name="all", train=["q"], optimizer="sgd", step_size=0.1, steps=1)
    found = Attended(above=0.7).measure(ProbeContext({"q": jnp.asarray(q)}, task, phase))
    for query in range(3):
        largest, positions, one = [], [], []
        for example in range(int(query == 2), 7):
            weights = np.exp(X[example] @ q[query] - (X[example] @ q[query]).max())
            weights /= weights.sum()
            largest.append(weights.max())
            positions.append(np.exp(-sum(w * np.log(w) for w in weights if w > 0)))
            one.append(weights.max() >= 0.7)
        np.testing.assert_allclose(found["largest_attention"][query], np.mean(largest), rtol=1e-12)
        np.testing.assert_allclose(found["attended_positions"][query], np.mean(positions), rtol=1e-12)
        assert found["selects_one"][query] == pytest.approx(np.mean(one))


def test_models_say_whether_they_show_attention():
    assert Queries().shows_attention
    assert not ja.models.OneLayer(dim=4).shows_attention
