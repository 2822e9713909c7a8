"""Value-softmax: attention polarises."""

import numpy as np
import pytest


def loop(values, steps, step_size=0.1):
    """Descend on scores a and values u of one sequence, in NumPy."""
    a, u = np.zeros(len(values)), values.copy()
    for _ in range(steps):
        q = np.exp(a - a.max()) / np.exp(a - a.max()).sum()
        pull = step_size / (1 + np.exp(q @ u))
        a, u = a + pull * q * (u - q @ u), u + pull * q
    return q_of(a), np.log1p(np.exp(-(q_of(a) @ u)))


def q_of(a):
    return np.exp(a - a.max()) / np.exp(a - a.max()).sum()


def start():
    """Sample the initial values of the published notebook, with NumPy's seed 123."""
    generator = np.random.RandomState(123)
    V = 0.1 * generator.randn(8, 8)
    generator.randn(8)
    beta = generator.randn(8)
    return V.T @ beta / np.linalg.norm(beta)


@pytest.mark.more
def test_attention_matches_a_loop_and_polarises(run):
    """Attention and loss from the published start match a loop; the flow converges to one token."""
    at = run("value_softmax", "seeds=2", "phases.descent.steps=1000", "blocks.drawn=null")
    q, loss = loop(start(), 1000)
    own = at("largest_attention", 1000, phase="descent")
    np.testing.assert_allclose(own, q.max(), rtol=1e-10)
    assert abs(own - 0.232).max() < 5e-4
    np.testing.assert_allclose(at("loss", 1000, phase="descent"), loss, rtol=1e-10)
    assert (at("top_score") == 6).all()
    assert (at("attention_left") < 1e-9).all()
    assert (at("p_one_minus_cosine") < 1e-9).all()
    assert (at("came_to_end") == 1).all()
