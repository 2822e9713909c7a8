"""Attention as an SVM: W converges to the max-margin direction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.more


def test_attention_converges_to_the_svm_solution(run):
    """W / ‖W‖ approaches the certified direction as attention saturates, if gradients are precise."""
    at = run("attention_svm", "seeds=3", "blocks.flow=null")
    assert (at("feasible") == 1).all()
    assert (at("duality_gap") < 1e-9).all()
    plain, all_digits = at("one_minus_cosine", cell=0), at("one_minus_cosine", cell=1)
    assert (plain < at("one_minus_cosine", 0, cell=0)).all()
    assert (all_digits < 0.01).all()
    assert all_digits.mean() < plain.mean() / 3
    assert (at("largest_attention", cell=1) > 0.999).all()


def test_both_implementations_of_the_model_agree(read):
    """Outputs and gradients agree before attention saturates."""
    study = read("attention_svm", "seeds=1", "dtype=float32")
    data = study.dataset(0).train
    plain, all_digits = (study.cells[number].setting.model for number in (0, 1))
    params = plain.init(jax.random.key(1), data, dtype=jnp.float32)

    def loss(params, model):
        return jnp.logaddexp(0, -data.targets * model.outputs(params, data)).mean()

    for ours, others in zip(*(jax.grad(loss)(params, model) for model in (plain, all_digits)), strict=True):
        np.testing.assert_allclose(ours, others, atol=1e-6)
