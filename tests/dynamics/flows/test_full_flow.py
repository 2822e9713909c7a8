import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaxattn as ja
from jaxattn.dynamics import Stop

pytestmark = pytest.mark.usefixtures("x64")
SIZES = {"vocab_size": 12, "relevant": 4, "length": 4, "sequences": 20}


@functools.cache
def problems(dim, seeds=2, relevant=4, scale=1.0):
    def draw(key):
        data_key, model_key = jax.random.split(key)
        corpus = ja.data.assumption1(data_key, **SIZES | {"relevant": relevant})
        params = ja.models.one_layer.init(model_key, vocab_size=12, dim=dim, dtype=jnp.float64)
        return jax.tree.map(lambda x: scale * x, params), corpus

    return jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(5), seeds))


def take(tree, seed):
    return jax.tree.map(lambda x: x[seed], tree)


@functools.cache
def followed(dim, until, **kind):
    return ja.dynamics.full_flow(*problems(dim, **kind), until_log_loss=until, points=8)


@pytest.mark.parametrize(
    ("dim", "scale"),
    [*(pytest.param(*each, marks=pytest.mark.more) for each in ((6, 1.0), (24, 0.01))), (24, 1.0)],
)
def test_full_flow_matches_plain_integration(dim, scale):
    """Plain integration of dθ/dt = -∂L/∂θ in R^d by SciPy, compared with the rows at their times."""
    params, corpus = take(problems(dim, scale=scale), 1)
    path = take(followed(dim, -4.0, scale=scale), 1)
    flat, restore = jax.flatten_util.ravel_pytree(params)
    gradient = jax.jit(jax.grad(lambda x: ja.dynamics.loss(restore(x), corpus)))
    time = np.exp(np.asarray(path.log_time))
    solution = solve_ivp(
        lambda t, x: -np.asarray(gradient(x)), (0, time[-1]), flat, "DOP853", time, rtol=1e-11, atol=1e-12
    )
    for row, x in enumerate(solution.y.T):
        expected = restore(jnp.asarray(x))
        for name in ("E", "p", "v"):
            found = getattr(path, name)[row] @ path.basis.T
            np.testing.assert_allclose(found, getattr(expected, name), atol=1e-6, err_msg=name)
        np.testing.assert_allclose(np.exp(path.log_loss[row]), ja.dynamics.loss(expected, corpus), rtol=1e-6)
    assert path.E.shape == (8, 12, min(dim, 14))
    steps = np.diff(solution.y, axis=1)
    assert (np.linalg.norm(steps, axis=0) <= np.diff(path.arc_length) + 1e-6).all()


def test_conserved_quantity_is_conserved():
    params, _ = problems(24)
    path = followed(24, -1e3)
    assert path.stop.tolist() == ["loss", "loss"]
    np.testing.assert_allclose(path.log_loss[:, -1], -1e3, rtol=1e-6)
    assert path.drift.max() < 1e-6
    for seed in range(2):
        own = take(path, seed)
        to = np.asarray(own.basis)
        E, p, v = (np.asarray(x[-1]) @ to.T for x in (own.E, own.p, own.v))
        start = take(params, seed)
        now, before = (
            x.T @ x - np.outer(y, y) - np.outer(z, z) for x, y, z in ((E, p, v), (start.E, start.p, start.v))
        )
        np.testing.assert_allclose(now, before, atol=1e-6 * np.linalg.norm(v) ** 2)


def on_top(E, p, corpus):
    """Return s(X) by a loop over sequences."""
    ids, mask = ja.models.reference.padded_sequences(corpus)
    scores = E @ p
    return np.array([row[there][scores[row[there]].argmax()] for row, there in zip(ids, mask, strict=True)])


@pytest.mark.more
@pytest.mark.parametrize(("relevant", "scale", "all_relevant"), [(4, 1.0, True), (10, 0.1, False)])
def test_top_tokens_align_with_v(relevant, scale, all_relevant):
    """E_s·v = y_s ‖v‖²/√r_eff for the r_eff top tokens at the end, 0 for others, and E of rank one.

    The top tokens are the relevant ones; or, with 10 of 12 tokens relevant and a small start, the relevant
    tokens of one label and irrelevant tokens for the other label.
    """
    kind = {"relevant": relevant, "scale": scale}
    path, (_, corpora) = followed(24, -1e3, **kind), problems(24, **kind)
    for seed in range(2):
        E, p, v = (np.asarray(getattr(path, name)[seed]) for name in ("E", "p", "v"))
        corpus = take(corpora, seed)
        labels, token = np.asarray(corpus.targets), on_top(E[-1], p[-1], corpus)
        chosen = np.unique(token)
        # Each top token occurs under one label.
        assert len(set(zip(token.tolist(), labels.tolist(), strict=True))) == len(chosen)
        if all_relevant:
            np.testing.assert_array_equal(chosen, np.arange(relevant))
        else:
            lost = [label for label in (-1, 1) if (token[labels == label] >= relevant).all()]
            assert len(lost) == 1
        sign = np.zeros(12)
        sign[token] = labels
        ratio = np.einsum("ksr,kr->ks", E, v) / np.square(v).sum(1, keepdims=True) * np.sqrt(len(chosen))
        off = np.abs(ratio - sign)
        on, elsewhere = off[:, chosen].max(1), off[:, sign == 0].max(1)
        # -log L is 10 times that of the row before; errors decrease by this factor, or by its square root.
        assert on[-1] < 0.04
        assert on[-1] < on[-2] / 3
        assert elsewhere[-1] < 0.3
        assert elsewhere[-1] < elsewhere[-2] / 2


@pytest.mark.more
def test_flow_with_unfittable_labels_ends_above_the_target_loss():
    params, _ = take(problems(24), 0)
    corpus = ja.data.from_sequences([[0, 1], [0, 1], [2, 3]], [1, -1, 1], vocab_size=12)
    path = ja.dynamics.full_flow(params, corpus, until_log_loss=-9.0, points=8, max_steps=300)
    assert path.stop in ("step_budget", "failed")
    # Two of three sequences contradict each other and cost log 2 each.
    assert path.log_loss[-1] > np.log(2 / 3 * np.log(2))
    assert np.isfinite(path.E).all()


def test_nonfinite_seed_fails_without_affecting_others():
    params, corpora = problems(24)
    broken = params.replace(p=params.p.at[0, 0].set(jnp.nan))
    path = ja.dynamics.full_flow(broken, corpora, until_log_loss=-1e3, points=8)
    assert path.status[0] != Stop.LOSS
    np.testing.assert_array_equal(path.p[1], followed(24, -1e3).p[1])


def test_invalid_input_is_rejected():
    params, corpus = take(problems(24), 0)
    with pytest.raises(ja.InputError, match="until_log_loss: must be finite, got -inf"):
        ja.dynamics.full_flow(params, corpus, until_log_loss=-np.inf)
    with pytest.raises(ja.InputError, match=r"full_flow\.points: expected 'int' >= 3, got 2"):
        ja.dynamics.full_flow(params, corpus, points=2)
    with jax.enable_x64(False), pytest.raises(ja.InputError, match="float64 is not enabled"):
        jax.jit(lambda params: ja.dynamics.full_flow(params, corpus).p)(params)


def test_path_starting_below_the_target_loss_stays_at_its_start():
    params, corpora = problems(24)
    path = ja.dynamics.full_flow(params, corpora, until_log_loss=0.0, points=8)
    assert path.stop.tolist() == ["loss", "loss"]
    np.testing.assert_array_equal(path.arc_length, 0)
    np.testing.assert_array_equal(path.p, jnp.broadcast_to(path.p[:, :1], path.p.shape))
