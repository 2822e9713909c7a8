import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxattn as ja
from jaxattn import models
from jaxattn.core.errors import InputError
from jaxattn.dynamics import descent, run
from jaxattn.probes import Conservation

TRAIN = ("E", "p", "v")


def quantity(params):
    E, p, v = (np.asarray(x) for x in (params.E, params.p, params.v))
    Q = np.zeros((E.shape[1], E.shape[1]))
    for row in E:
        Q += np.outer(row, row)
    for query in p if p.ndim == 2 else [p]:
        Q -= np.outer(query, query)
    per_head = v if p.ndim == 2 else v[None]
    for head in per_head:
        for column in head.T if head.ndim == 2 else [head]:
            Q -= np.outer(column, column)
    return Q


def drift(model, params, moved, corpus, show):
    memory = Conservation().remember(params)
    return Conservation().measure(show(model, moved, corpus, memory=memory))["conservation_drift"]


ONCE = [(3, 2, None), (20, 3, 2), (60, 2, 2), (60, 3, None)]


@pytest.mark.parametrize(
    ("dim", "classes", "heads"),
    [
        pytest.param(*case, marks=[] if case in ONCE else pytest.mark.more)
        # Against m rows: d < m, m < d < 2m, 2m < d.
        for case in itertools.product((3, 20, 60), (2, 3), (None, 2))
    ],
)
def test_drift_equals_that_of_the_matrix_written_out(x64, rng, corpus, show, draw, dim, classes, heads):
    corpus = corpus(classes)
    model = models.MultiHead(dim=dim, heads=heads) if heads else models.OneLayer(dim=dim)
    params = draw(model, corpus)
    for size in (1e-6, 1.0):
        moved = jax.tree.map(lambda x, size=size: x + size * jnp.asarray(rng.normal(size=x.shape)), params)
        before, after = quantity(params), quantity(moved)
        expected = np.linalg.norm(after - before) / np.linalg.norm(before)
        np.testing.assert_allclose(drift(model, params, moved, corpus, show), expected, rtol=1e-8)


@pytest.mark.parametrize("model", [models.OneLayer(dim=40), models.MultiHead(dim=6, heads=2)])
def test_small_steps_conserve_it_and_drift_in_proportion_to_their_size(x64, corpus, show, draw, model):
    corpus = corpus()
    params = draw(model, corpus)
    found = []
    for size, steps in ((0.1, 200), (0.05, 400)):
        algorithm = descent(optax.sgd(size), train=TRAIN, outputs=model.outputs)
        moved = jax.jit(lambda x, k, a=algorithm: run(a, a.init(x), corpus, k).params)(params, steps)
        assert jnp.abs(moved.p - params.p).max() > 0.1
        found.append(float(drift(model, params, moved, corpus, show)))
    assert 1.7 < found[0] / found[1] < 2.3
    assert found[0] < 0.02


def test_float32_keeps_the_digits_of_a_small_drift(corpus, show, draw):
    corpus, model = corpus(), models.OneLayer(dim=64)
    params = model.init(jax.random.key(0), corpus, dtype=jnp.float32)
    moved = params.replace(p=params.p * 1.001, v=params.v * 0.999, E=params.E * 1.0005)
    before, after = (quantity(jax.tree.map(lambda x: np.asarray(x, np.float64), x)) for x in (params, moved))
    expected = np.linalg.norm(after - before) / np.linalg.norm(before)
    np.testing.assert_allclose(drift(model, params, moved, corpus, show), expected, rtol=1e-3)


def test_it_is_measured_where_all_three_are_trained(x64, corpus, show, draw, applies):
    corpus, model = corpus(), models.OneLayer(dim=4)
    params = draw(model, corpus)
    memory = Conservation().remember(params)
    assert not applies(Conservation(), model, None, ("p",))
    assert applies(Conservation(), model, None, ("v", "E", "p"))
    assert Conservation().measure(show(model, params, corpus, memory=memory)) == {"conservation_drift": 0}
    with pytest.raises(InputError, match="E: not a parameter of the model; it has W"):
        Conservation().remember({"W": params.E})


def test_seeds_are_measured_together(x64, corpus, show, draw):
    corpus, model = corpus(), models.OneLayer(dim=40)
    start = [draw(model, corpus, seed) for seed in (0, 1)]
    moved = [ja.dynamics.one_step(x, corpus, step_size=1.0, train=TRAIN) for x in start]
    both, after = (jax.tree.map(lambda *x: jnp.stack(x), *x) for x in (start, moved))
    found = jax.vmap(lambda x, y: drift(model, x, y, corpus, show))(both, after)
    for lane in (0, 1):
        np.testing.assert_allclose(found[lane], drift(model, start[lane], moved[lane], corpus, show))
