"""One layer of linear attention and its closed-form minimum."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

pytestmark = pytest.mark.more
NAME = "icl_preconditioned_gd"


@pytest.fixture
def data(code):
    """Sample prompts of 20 pairs."""
    return lambda m, inverse: code(NAME, "prompts")(
        jax.random.key(1), jax.random.key(2), sequences=m, length=20, inverse=inverse
    )


def test_prediction_matches_the_attention_of_the_paper(code, data):
    """Minus the last entry of Z + P Z M (Zᵀ Q Z)/n, with all tokens in columns, prompt by prompt."""
    drawn, model = data(5, False), code(NAME, "LinearAttention")(start=1.0)
    params = model.init(jax.random.key(3), drawn, dtype=np.float32)
    P, Q = (np.asarray(x, float) for x in params)
    M = np.diag([1.0] * 20 + [0.0])
    for tokens, ours in zip(np.asarray(drawn.Z, float), model.outputs(params, drawn), strict=True):
        Z = tokens.T
        assert_allclose(ours, -(Z + P @ Z @ M @ (Z.T @ Q @ Z) / 20)[-1, -1], rtol=1e-4)


@pytest.mark.parametrize("inverse", [False, True])
def test_closed_form_is_the_least_squares_solution(code, data, inverse):
    """Regress the answers on (Σ y x)_a x_c/n in the eigenbasis; 100,000 prompts, 5 standard errors."""
    drawn = data(100_000, inverse)
    Z, y, U = (np.asarray(x, float) for x in (drawn.Z, drawn.targets, drawn.U[0]))
    slopes = np.einsum("mta,mt->ma", Z[:, :-1, :-1] @ U, Z[:, :-1, -1]) / 20
    features = np.einsum("ma,mc->mac", slopes, Z[:, -1, :-1] @ U).reshape(len(y), -1)
    inverted = np.linalg.inv(features.T @ features)
    fit = inverted @ (features.T @ y)
    rest = y - features @ fit
    errors = np.sqrt(np.diag(inverted @ (features.T * rest**2 @ features) @ inverted))
    best = np.diag(code(NAME, "step_sizes")(20, inverse))
    assert (abs(fit - best.ravel()) < 5 * errors).all()
    assert_allclose((rest**2).mean(), code(NAME, "least_loss")(20, inverse), rtol=0.03)
    outputs = code(NAME, "LinearAttention")().outputs(code(NAME, "minimum")(drawn), drawn)
    assert_allclose(outputs, features @ best.ravel(), atol=1e-4)


def test_training_approaches_the_closed_form(run):
    at = run(NAME, "blocks=null", "figures=null", "seeds=2", "data.sequences=2000", "phases.train.steps=400")
    assert (at("loss_ratio", 0) > 4).all()
    assert_allclose(at("loss_ratio"), 1, atol=0.15)
    assert_allclose(at("step_size_1"), 1, atol=0.1)
