from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.attention import attend, batched
from jaxattn.data.ragged import Ragged


@pytest.fixture
def corpus(rng, monkeypatch):
    """A large corpus with repeated and unused tokens, and a sequence of the lowest token only."""
    monkeypatch.setattr("jaxattn.data.ragged.LARGE", 0)
    monkeypatch.setattr("jaxattn.data.ragged.RUN", 4)
    lengths = [1, 2, 3, 150, *rng.integers(1, 60, 25)]
    sequences = [rng.integers(0, 80, length).tolist() for length in lengths]
    return ja.data.from_sequences([*sequences, [85, 85]], [-1, 1] * 15, vocab_size=90)


def batch_of(rng, spreads, dtype, *classes):
    scores = rng.uniform(size=(len(spreads), 90)) * np.array(spreads)[:, None]
    scores[:, 85], scores[:, 0] = 0, spreads
    return jnp.asarray(scores, dtype), jnp.asarray(rng.normal(size=(len(spreads), 90, *classes)), dtype)


@jax.jit
def by_positions(ids, mask, scores, values):
    def f(scores, values):
        q = jax.nn.softmax(jnp.where(mask, scores[ids], -jnp.inf), axis=1)
        return jnp.einsum("nt,nt...->n...", q, values[ids])

    squares = jax.vmap(jax.grad(lambda *x: (f(*x) ** 2).sum(), argnums=(0, 1)))(scores, values)
    return jax.vmap(f)(scores, values), *squares


def reference(corpus, scores, values):
    """Return f by position, and the gradient of Σ f² by automatic differentiation, in float64."""
    ids, mask = ja.models.reference.padded_sequences(corpus)
    with jax.enable_x64(True):
        return by_positions(ids, mask, *(jnp.asarray(np.asarray(x, np.float64)) for x in (scores, values)))


def single(corpus, scores, values):
    """Return f and the gradient of Σ f²."""
    f, back = jax.vjp(partial(attend, corpus), scores, values)
    return f, *back(2 * f)


ours = jax.jit(jax.vmap(single, in_axes=(None, 0, 0)))
alone = jax.jit(single)


# A batch of five uses at most seven bands. Members that require more are computed separately.
SPREADS = {
    "one band": [0.5] * 5,
    "two bands": [1.2, 1.9, 1.5, 1.1, 1.7],
    "many bands": [6.5, 3.2, 4.9, 5.5, 6.1],
    "huge": [150.0] * 5,
    "mixed": [0.3, 150.0, 0.0, 1.5, 0.7],
}


@pytest.mark.parametrize("spreads", SPREADS.values(), ids=SPREADS)
@pytest.mark.parametrize(
    "classes",
    [pytest.param((), marks=pytest.mark.more, id="one value"), pytest.param((3,), id="three values")],
)
def test_batches_match_the_reference_and_single_calls(rng, x64, corpus, spreads, classes):
    scores, values = batch_of(rng, 512 * np.array(spreads), np.float64, *classes)
    together = ours(corpus, scores, values)
    apart = zip(*(alone(corpus, *x) for x in zip(scores, values, strict=True)), strict=True)
    for mine, looped, exact in zip(together, apart, reference(corpus, scores, values), strict=True):
        np.testing.assert_allclose(mine, exact, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(mine, looped, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("spreads", SPREADS.values(), ids=SPREADS)
@pytest.mark.more
def test_batches_match_the_reference_in_float32(rng, corpus, spreads):
    scores, values = batch_of(rng, 64 * np.array(spreads), np.float32)
    for mine, exact in zip(ours(corpus, scores, values), reference(corpus, scores, values), strict=True):
        np.testing.assert_allclose(mine, exact, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("spreads", [SPREADS["two bands"], SPREADS["mixed"]], ids=["two bands", "mixed"])
def test_dense_tpu_products_match_the_reference(rng, corpus, monkeypatch, spreads):
    monkeypatch.setattr("jaxattn.data.ragged.backend.platform", lambda: "tpu")
    bags = [np.asarray(corpus.bags.count), np.asarray(corpus.bags.index)]
    owner = np.broadcast_to(np.asarray(corpus.bags.owner)[:, None], bags[0].shape)
    present = bags[0] > 0
    tokens = np.repeat(bags[1][present], bags[0][present])
    lengths = np.bincount(owner[present], weights=bags[0][present]).astype(int)
    whole = ja.data.from_flat(tokens, lengths, corpus.targets, vocab_size=90)
    assert len(whole.bags.dense) == len(whole.occurrences.dense) == 1
    # A TPU calls this function; the platform of this process would choose another one.
    monkeypatch.setattr(Ragged, "matmul", Ragged._matmul_dense)
    scores, values = batch_of(rng, 64 * np.array(spreads), np.float32)
    found = jax.jit(jax.vmap(single, in_axes=(None, 0, 0)))(whole, scores, values)
    for mine, exact in zip(found, reference(corpus, scores, values), strict=True):
        np.testing.assert_allclose(mine, exact, rtol=2e-5, atol=2e-5)
    assert "bcsr_dot_general" not in str(jax.make_jaxpr(jax.vmap(partial(attend, whole)))(scores, values))


@pytest.mark.more
def test_each_argument_can_be_vmapped_separately(rng, x64, corpus):
    scores, values = batch_of(rng, [1, 700, 2000], np.float64)
    f = partial(attend, corpus)
    one_score = jax.vmap(f, in_axes=(None, 0))(scores[1], values)
    one_value = jax.vmap(f, in_axes=(0, None))(scores, values[1])
    for i in range(3):
        np.testing.assert_allclose(one_score[i], f(scores[1], values[i]), rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(one_value[i], f(scores[i], values[1]), rtol=1e-12, atol=1e-13)
    slope = jax.vmap(jax.grad(lambda a, g: f(a, g)[3]), in_axes=(None, 0))(scores[1], values)
    np.testing.assert_allclose(slope[2], jax.grad(lambda a: f(a, values[2])[3])(scores[1]), atol=1e-13)


@pytest.mark.more
def test_nested_vmaps_are_merged_into_one_batched_product(rng, x64, corpus):
    scores, values = batch_of(rng, [1, 700], np.float64, 3)
    nested = jax.vmap(lambda a, g: jax.vmap(lambda a, g: attend(corpus, a, g), (None, 1))(a, g))
    by_column = nested(scores, values)
    whole = jax.vmap(partial(attend, corpus))(scores, values)
    np.testing.assert_allclose(by_column, whole.transpose(0, 2, 1), rtol=1e-12, atol=1e-13)
    program = str(jax.make_jaxpr(nested)(scores, values))
    assert program.count("bcsr_dot_general") == len(corpus.bags.factors)


@pytest.mark.more
@pytest.mark.parametrize("spread", [1.0, 700.0])
def test_batch_jacobians_match_single_calls(rng, x64, corpus, spread):
    scores, values = batch_of(rng, [spread, spread / 2], np.float64)
    jacobian = jax.jacrev(partial(attend, corpus))
    gradient = jax.grad(lambda a, g: (attend(corpus, a, g) ** 2).sum())
    rows = jax.jit(jax.vmap(jacobian))(scores, values)
    columns = jax.jit(jax.vmap(jax.jacfwd(gradient)))(scores, values)
    jacobian, gradient = jax.jit(jacobian), jax.jit(gradient)
    for i in range(2):
        row = jacobian(scores[i], values[i])
        np.testing.assert_allclose(rows[i], row, rtol=1e-11, atol=1e-13)
        step = 1e-6 * jnp.asarray(rng.normal(size=90))
        difference = (gradient(scores[i] + step, values[i]) - gradient(scores[i] - step, values[i])) / 2
        np.testing.assert_allclose(columns[i] @ step, difference, atol=1e-13)


@pytest.mark.more
def test_large_batches_are_split_into_chunks(rng, x64, corpus, monkeypatch):
    scores, values = batch_of(rng, [1, 700, 2000, 3, 1e4, 5, 0], np.float64)
    whole = ours(corpus, scores, values)
    monkeypatch.setattr(batched, "COLUMNS", 6)
    jax.clear_caches()
    parts = ours(corpus, scores, values)
    jax.clear_caches()
    for part, all_at_once in zip(parts, whole, strict=True):
        np.testing.assert_allclose(part, all_at_once, rtol=1e-12, atol=1e-13)


def test_corpora_can_be_vmapped(rng, x64, corpus):
    sequences = [[[0, 1, 1], [2, 0]], [[2, 1, 1], [0, 2]]]
    each = [ja.data.from_sequences(s, [1, -1], vocab_size=3) for s in sequences]
    both = jax.tree.map(lambda *x: jnp.stack(x), *each)
    scores, values = jnp.asarray(rng.normal(size=(2, 2, 3)))
    result = jax.vmap(attend)(both, scores, values)
    for i in range(2):
        np.testing.assert_allclose(result[i], attend(each[i], scores[i], values[i]), rtol=1e-12)


@pytest.mark.more
def test_nan_does_not_spread_to_other_batch_members(rng, corpus):
    scores, values = batch_of(rng, [10, 10, 100], np.float32)
    f, d_scores, _ = ours(corpus, scores.at[1, 7].set(jnp.nan), values)
    expected, d_expected, _ = ours(corpus, scores, values)
    np.testing.assert_allclose(f[::2], expected[::2], rtol=1e-6)
    np.testing.assert_allclose(d_scores[::2], d_expected[::2], rtol=1e-5, atol=1e-6)
    assert np.isnan(f[1]).any()


def test_compiled_batches_use_no_scatter_and_are_deterministic(rng, corpus):
    scores, values = batch_of(rng, [10, 100, 1e4], np.float32)
    compiled = jax.jit(partial(ours, corpus)).lower(scores, values).compile()
    assert " scatter(" not in compiled.as_text()
    for one, other in zip(compiled(scores, values), compiled(scores, values), strict=True):
        np.testing.assert_array_equal(one, other)


def test_sequential_vmap_equals_vmap(rng, x64, corpus):
    def doubled(corpus, x, y):
        return {"sum": (corpus.lengths * x).sum() + y}

    x, y = rng.normal(size=(2, 4))
    sequential = jax.vmap(partial(batched.sequential_vmap_if_large(doubled), corpus))
    vmapped = jax.vmap(partial(doubled, corpus))
    np.testing.assert_allclose(sequential(x, y)["sum"], vmapped(x, y)["sum"], rtol=1e-14)
    assert "scan" in str(jax.make_jaxpr(sequential)(x, y))
