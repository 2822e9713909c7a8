"""Real tokens: examples that are taken, masks, and what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.core.errors import InputError
from jaxattn.data.vectors import Vectors


def vectors(n=4, tokens=3, dim=2, **changes):
    X = jnp.arange(float(n * tokens * dim)).reshape(n, tokens, dim)
    return Vectors(targets=jnp.ones(n, int), X=X, z=X[:, 0], classes=2).replace(**changes)


def test_examples_keep_tokens_and_queries():
    data = vectors(mask=jnp.ones((4, 3), bool))
    data.check()
    taken = data.take(jnp.array([2, 0]))
    np.testing.assert_array_equal(taken.X, np.asarray(data.X)[[2, 0]])
    np.testing.assert_array_equal(taken.z, np.asarray(data.X)[[2, 0], 0])
    assert (taken.num_examples, taken.dim, taken.num_classes) == (2, 2, 2)


def test_tokens_that_are_not_there_have_no_score():
    mask = jnp.array([[True, False, True]] * 4)
    scores = vectors(mask=mask).masked(jnp.ones((4, 3)))
    np.testing.assert_array_equal(np.isfinite(scores), mask)
    assert np.isfinite(vectors().masked(jnp.ones((4, 3)))).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": jnp.ones((4, 3))}, r"X: float32\[4, 3\]; give tokens \(n, T, d\)"),
        ({"X": jnp.ones((5, 3, 2))}, r"X: float32\[5, 3, 2\] for 4 targets"),
        ({"z": jnp.ones((4, 5))}, r"z: float32\[4, 5\] for tokens of dimension 2"),
        ({"mask": jnp.zeros((4, 3), bool)}, "sequence 0: it has no token"),
    ],
)
def test_vectors_that_are_wrong_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        vectors(**changes).check()
