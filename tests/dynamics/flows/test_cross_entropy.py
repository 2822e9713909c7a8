"""The flow of cross-entropy against automatic differentiation and an independent integrator."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaxattn as ja
from jaxattn.dynamics.flows.cross_entropy import score_force
from jaxattn.dynamics.flows.direction import token_curvature
from jaxattn.theory.scores import Scores

K, VOCAB, DIM = 3, 9, 12


def problem(seed):
    """Bags of four distinct tokens of three classes; the first token of each has its class."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(12) % K)
    lists = [[int(y), *rng.choice(np.arange(K, VOCAB), 3, replace=False).tolist()] for y in labels]
    corpus = ja.data.from_sequences(lists, labels.tolist(), vocab_size=VOCAB, num_classes=K)
    values = 0.3 * rng.normal(size=(VOCAB, K))
    values[:K] += 2 * np.eye(K)
    return Scores(rng.normal(size=(VOCAB, DIM)), corpus, values), rng.normal(size=DIM) / 4, lists, labels


def loss(a, values, lists, labels):
    """Mean cross-entropy, sequence by sequence."""
    total = 0.0
    for tokens, y in zip(lists, labels, strict=True):
        index = np.array(tokens)
        f = jax.nn.softmax(a[index]) @ values[index]
        total += jax.nn.logsumexp(f) - f[y]
    return total / len(lists)


@pytest.mark.parametrize("size", [0.5, 3.0])
def test_force_and_curvature_by_automatic_differentiation(x64, rng, size):
    scores, _, lists, labels = problem(0)
    a, values = jnp.asarray(size * rng.normal(size=VOCAB)), jnp.asarray(scores.values)
    force = score_force(scores.corpus, a, values)
    scale = np.exp(force.log_scale)

    def mean_loss(a):
        return loss(a, values, lists, labels)

    gradient = jax.jit(jax.grad(mean_loss))(a)
    np.testing.assert_allclose(scale * force.force, -gradient, rtol=1e-9, atol=1e-14)
    hessian = jax.jit(jax.hessian(mean_loss))(a)
    curvature = scale * token_curvature(scores.corpus, force)
    np.testing.assert_allclose(curvature, -hessian, rtol=1e-8, atol=1e-13)


def test_far_out_the_force_is_the_leading_term(x64):
    """One sequence on its top token by 500 nats: the pull of the other is e^-500 r·(γ_1 - γ_0)."""
    corpus = ja.data.from_sequences([[0, 1]], [2], vocab_size=2, num_classes=3)
    values = np.array([[0.0, 1.0, 4.0], [2.0, -1.0, 0.5]])
    force = score_force(corpus, jnp.array([500.0, 0.0]), jnp.asarray(values))
    pi = np.exp(values[0]) / np.exp(values[0]).sum()
    pull = (np.eye(3)[2] - pi) @ (values[1] - values[0])
    np.testing.assert_allclose(force.log_scale + np.log(np.abs(force.force[1])), np.log(-pull) - 500)
    np.testing.assert_allclose(force.force.sum(), 0, atol=1e-15)


@pytest.mark.parametrize("seed", range(2))
def test_the_path_is_that_of_an_independent_integrator_and_its_end_is_certified(x64, seed):
    scores, p, lists, labels = problem(seed)
    path = ja.dynamics.exact_flow(scores, p, until_norm=1e5, points=24, rtol=1e-6)
    assert path.stop == "norm"
    keys = jnp.asarray(scores.keys)
    gradient = jax.jit(jax.grad(lambda p: loss(keys @ p, jnp.asarray(scores.values), lists, labels)))

    def velocity(_, p):
        g = np.asarray(gradient(p))
        return -g / np.linalg.norm(g)

    near = path.arc_length[(path.arc_length > 0) & (path.norm < 15)]
    assert len(near) >= 3
    by_radau = solve_ivp(velocity, (0, near[-1]), p, method="Radau", t_eval=near, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(path.p[1 : 1 + len(near)], by_radau.y.T, rtol=1e-4, atol=2e-4)
    found = ja.theory.certify_limit(scores, path.p[-1], path.selection)
    assert found.holds
    assert ja.theory.one_minus_cosine(path.p[-1], found.direction.p) < 1e-6


def test_two_classes_with_a_logit_each_go_where_the_logistic_loss_goes(x64):
    """Outputs (0, 0, f) with a third class far below: cross-entropy of (−f/2, f/2) is logistic of f."""
    rng = np.random.default_rng(5)
    lists = [rng.choice(VOCAB, 4, replace=False).tolist() for _ in range(8)]
    labels, gamma = rng.choice([-1, 1], 8), rng.normal(size=VOCAB)
    keys, p = rng.normal(size=(VOCAB, DIM)), rng.normal(size=DIM) / 4
    two = ja.data.from_sequences(lists, labels.tolist(), vocab_size=VOCAB)
    three = ja.data.from_sequences(lists, ((labels + 1) // 2).tolist(), vocab_size=VOCAB, num_classes=3)
    values = np.stack([-gamma / 2, gamma / 2, np.full(VOCAB, -800.0)], axis=1)
    settings = {"until_norm": 50.0, "points": 12}
    one = ja.dynamics.exact_flow(Scores(keys, two, gamma), p, **settings)
    other = ja.dynamics.exact_flow(Scores(keys, three, values), p, **settings)
    assert one.stop == other.stop
    np.testing.assert_allclose(one.p, other.p, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(one.log_time[1:], other.log_time[1:], atol=1e-4)
