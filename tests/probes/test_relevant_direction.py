from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import jaxattn as ja
from jaxattn.data.splits import Loaded, Splits
from jaxattn.dynamics import Descent, ExactFlow
from jaxattn.models import OneLayer
from jaxattn.models.one_layer import Params
from jaxattn.probes import RelevantDirection
from jaxattn.probes.relevant_direction import where_head_is_tight

SEQUENCES, LABELS = [[1, 4], [3, 5], [0, 6], [1, 6]], [1, 1, -1, 1]


@pytest.fixture
def corpus():
    return ja.data.from_sequences(SEQUENCES, LABELS, vocab_size=7)


@pytest.fixture
def E():
    """Token 3 points where token 1 does and is three times as long: only token 1 holds the head back."""
    E = np.eye(7)
    E[3] = 3 * E[1]
    return E


@pytest.mark.usefixtures("x64")
def test_sequences_where_the_head_is_tight(E, corpus):
    kept = where_head_is_tight(E, corpus, 4)
    ids, real = ja.models.reference.padded_sequences(kept)
    assert [sorted(row[mask].tolist()) for row, mask in zip(ids, real, strict=True)] == [
        [1, 4],
        [0, 6],
        [1, 6],
    ]


@pytest.mark.usefixtures("x64")
def test_p_and_its_movement_against_directions_of_a_general_solver(E, corpus):
    """Pairs 1 > 4, 1 > 6, 0 > 6 and 3 > 5, of which the last one is not tight."""

    def shortest(pairs):
        gaps = [{"type": "ineq", "fun": lambda p, a=a, b=b: p @ (E[a] - E[b]) - 1} for a, b in pairs]
        return minimize(lambda p: p @ p, np.ones(7), constraints=gaps, tol=1e-14).x

    every, tight = shortest([(1, 4), (1, 6), (0, 6), (3, 5)]), shortest([(1, 4), (1, 6), (0, 6)])
    start = np.linspace(-1, 1, 7)
    history = np.stack([start, start + 0.1, start + 2 * tight])[None]
    loaded = Loaded(Splits(jax.tree.map(lambda x: x[None], corpus), None), False, list("0123456"))
    params = Params(jnp.asarray(E)[None], jnp.zeros((1, 7)), jnp.zeros((1, 7)))
    path, end = RelevantDirection(relevant=4).conclude(history, params, loaded)

    def away(p, q):
        return 1 - p @ q / np.linalg.norm(p) / np.linalg.norm(q)

    expected = [away(p, every) for p in history[0]]
    np.testing.assert_allclose(path["relevant_one_minus_cosine"][0], expected, atol=1e-6)
    np.testing.assert_allclose(end["movement"], away(tight, every), atol=1e-6)
    np.testing.assert_allclose(end["tight_movement"], 0, atol=1e-6)
    assert end["tight_feasible"] == 1
    assert end["tight_duality_gap"] <= 1e-10


def test_it_looks_where_p_and_v_move():
    model, probe = OneLayer(dim=3), RelevantDirection(relevant=2)
    both = Descent(name="a", optimizer="sgd", step_size=1.0, steps=1, train=("v", "p"))
    assert probe.applies(model, None, both)
    assert not probe.applies(model, None, ExactFlow(name="b"))
    assert not probe.applies(SimpleNamespace(), None, both)
