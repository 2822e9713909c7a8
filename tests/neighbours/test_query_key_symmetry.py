"""Symmetry of query-key matrices."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from jaxattn.data import Sequences
from jaxattn.lab.study.import_paths import ImportPaths

pytestmark = pytest.mark.more
SHIPPED = Path(__file__).parents[2] / "sweeps" / "neighbours"
NAME = "query_key_symmetry"


def test_symmetry_score_is_the_norm_of_the_symmetric_part(code):
    """2 ‖(M + Mᵀ)/2‖²/‖M‖² - 1; it is 1 or -1 for symmetric and antisymmetric matrices."""
    M = np.random.default_rng(0).normal(size=(3, 6, 6))
    found = code(NAME, "symmetry")(jnp.asarray(M, jnp.float32))
    part = (M + M.swapaxes(1, 2)) / 2
    assert_allclose(found, 2 * (part**2).sum(axis=(1, 2)) / (M**2).sum(axis=(1, 2)) - 1, atol=1e-6)
    assert_allclose(code(NAME, "symmetry")(jnp.asarray(part)), 1, rtol=1e-6)
    assert_allclose(code(NAME, "symmetry")(jnp.asarray(M - part)), -1, rtol=1e-6)


def test_products_of_random_matrices_have_symmetry_one_over_d(code):
    rng, d = np.random.default_rng(0), 8
    Q, K = rng.normal(size=(2, 4000, d, d))
    M = Q @ K.swapaxes(1, 2)
    ratio = np.einsum("nij,nji->n", M, M).mean() / (M**2).sum(axis=(1, 2)).mean()
    assert abs(ratio - 1 / d) < 0.01
    assert abs(float(code(NAME, "symmetry")(jnp.asarray(M, jnp.float32)).mean()) - 1 / d) < 0.02


def test_directionality_is_positive_for_a_dominant_column(code):
    M = np.random.default_rng(0).normal(size=(20, 20)).astype(np.float32)
    M[:, 3] *= 10
    assert code(NAME, "directionality")(jnp.asarray(M)) > 0
    assert_allclose(
        code(NAME, "directionality")(jnp.asarray(M.T)), -code(NAME, "directionality")(jnp.asarray(M))
    )
    assert code(NAME, "directionality")(jnp.ones((4, 4))) == 0


@pytest.mark.parametrize("causal", [False, True])
def test_decoder_predictions_do_not_depend_on_later_words(code, causal):
    ids = jax.random.randint(jax.random.key(0), (2, 8), 0, 5)
    model = code(NAME, "SmallBert")(dim=4, causal=causal)

    def outputs(ids):
        data = Sequences(targets=ids, ids=ids, mask=jnp.ones(ids.shape, bool), vocab_size=5)
        params = model.init(jax.random.key(1), data, dtype=jnp.float32)
        return model.outputs(jax.tree.map(lambda x: 10 * x, params), data)

    changed = outputs(ids.at[:, 5].set((ids[:, 5] + 1) % 5)) - outputs(ids)
    assert (abs(np.asarray(changed[:, :5])).max() > 1e-6) is np.bool_(not causal)
    assert abs(changed[:, 5:]).max() > 1e-6


def test_loss_counts_only_predicted_words():
    loss = ImportPaths(SHIPPED / NAME).load("reviews.py:predicted_words")
    logits = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    targets = np.array([[0, -1, 2], [-1, -1, 3]])
    each = np.log(np.exp(logits).sum(axis=2)) - np.take_along_axis(logits, targets[..., None], axis=2)[..., 0]
    assert_allclose(loss(logits, targets).mean(), each[targets >= 0].mean(), rtol=1e-5)
