from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.dynamics.flows.far_field import Handover, Head, LogisticWeights, neglected

pytestmark = pytest.mark.usefixtures("x64")

LOG_SCALE, LOG_FORCE, LOG_OFFSET = 5.0, -12.0, 0.7


def bound(sequences, labels, values, scores, token, apart):
    """Return the bound at given scores; the first sequence is tight, the second one is not."""
    corpus = ja.data.from_sequences(sequences, labels, vocab_size=4)
    index = np.asarray(corpus.bags.index)
    head = Head(
        chosen=jnp.asarray(index < 2),
        token=jnp.asarray(token, jnp.int32),
        coefficients=jnp.array([1.0, 0.0, 0.0, 0.0]),
        tight=jnp.array([True, False, False, False]),
        values=jnp.asarray(values),
        log_norm=jnp.zeros(()),
    )
    flow = SimpleNamespace(
        corpus=corpus,
        weigh=LogisticWeights(jnp.zeros(2), jnp.array([0.0, 9.0])),
        scores=jnp.asarray(scores),
        lift=jnp.zeros((4, 1)),
    )
    distance = jnp.where(corpus.bags.count > 0, jnp.asarray(apart)[index], 0)
    handover = Handover(head, jnp.zeros(()), flow, distance, jnp.asarray(LOG_OFFSET), jnp.zeros(()))
    evaluate = jax.jit(lambda log_scale, log_force: neglected(handover, jnp.zeros(1), log_scale, log_force))
    return float(evaluate(LOG_SCALE, LOG_FORCE))


def neglected_force(sequences, labels, values, scores, apart):
    """Sum w_X q_i ‖E_i - E_s‖² ‖δ‖ / (r ‖dp/dτ‖) in a loop, with weights 1 and e^(-9 (y f - 1)).

    q_i is count_i e^(-gap), its value up to the normaliser, as in the docstring of `neglected`.
    """
    total = 0.0
    for sequence, label, steepness in zip(sequences, labels, (0.0, 9.0), strict=True):
        a = np.array([scores[s] for s in sequence])
        weights = np.exp(a - a.max())
        f = weights @ np.array([values[s] for s in sequence]) / weights.sum()
        weight = np.exp(-steepness * (label * f - 1)) / len(sequences)
        total += weight * weights @ np.array([apart[s] for s in sequence]) ** 2
    return total * np.exp(LOG_OFFSET - LOG_SCALE - LOG_FORCE)


SEQUENCES, LABELS = [[0, 2, 2, 2], [1, 3, 3, 3]], [1, 1]


@pytest.mark.more
def test_bound_is_the_larger_of_the_errors_of_weights_and_of_the_force():
    scores, apart = [10.0, 10.0, 0.0, 0.0], [0.0, 0.0, 1e-6, 1e-6]
    values = [1.0, 1.7, 0.4, -5.0]
    of_weights = 3 * np.exp(LOG_SCALE - 10) * 0.6
    np.testing.assert_allclose(
        bound(SEQUENCES, LABELS, values, scores, [0, 1], apart), of_weights, rtol=1e-12
    )
    apart = [0.0, 0.0, 2.0, 3.0]
    expected = neglected_force(SEQUENCES, LABELS, values, scores, apart)
    assert expected > of_weights
    found = bound(SEQUENCES, LABELS, values, scores, [0, 1], apart)
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_bound_is_not_zero_for_tokens_of_equal_value():
    values, scores, apart = [1.0, 1.7, 1.0, -5.0], [10.0, 40.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0]
    expected = neglected_force(SEQUENCES, LABELS, values, scores, apart)
    np.testing.assert_allclose(bound(SEQUENCES, LABELS, values, scores, [0, 1], apart), expected, rtol=1e-3)


def test_bound_is_zero_for_equal_keys():
    values, scores, apart = [1.0, 1.7, 1.0, -5.0], [10.0, 40.0, 10.0, 0.0], [0.0] * 4
    assert bound(SEQUENCES, LABELS, values, scores, [0, 1], apart) == 0


@pytest.mark.parametrize(
    ("values", "scores"),
    [
        pytest.param([1.0, 1.7, 1.0, -5.0], [0.0, 40.0, 9.0, 0.0], id="tight sequence attends elsewhere"),
        pytest.param([1.0, 1.0, 0.4, -5.0], [10.0, 10.0, 0.0, 0.0], id="another one rests on the margin"),
    ],
)
def test_bound_is_infinite_without_the_attended_tokens(values, scores):
    assert bound(SEQUENCES, LABELS, values, scores, [0, 1], [0.0, 0.0, 1.0, 1.0]) == np.inf


def test_weights_fall_like_an_exponential_of_the_margin_beyond_one():
    log_weight, steepness, margin = np.array([0.3, -2.0]), np.array([0.0, 9.0]), np.array([4.0, 1.5])
    found, slope = LogisticWeights(jnp.asarray(log_weight), jnp.asarray(steepness))(jnp.asarray(margin))
    np.testing.assert_allclose(np.exp(found), [np.exp(0.3), np.exp(-2.0) * np.exp(-9 * 0.5)], rtol=1e-14)
    np.testing.assert_array_equal(slope, steepness)
