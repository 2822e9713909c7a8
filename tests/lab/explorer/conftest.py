"""A path of the exact flow with its limit, and the figure of it."""

import jax
import pytest

import jaxattn as ja

# Sizes of the tests of the exact flow, whose programs serve here too.
V, POINTS = 12, 16


@pytest.fixture(scope="session")
def solved():
    corpus = ja.data.assumption1(jax.random.key(0), vocab_size=V, relevant=4, length=4, sequences=20)
    start = ja.models.one_layer.init(jax.random.key(1), vocab_size=V, dim=64)
    params = jax.jit(lambda x: ja.dynamics.one_step(x, corpus, step_size=100.0))(start)
    scores = ja.theory.scores.one_layer(params, corpus)
    path = ja.dynamics.exact_flow(scores, params.p, until_norm=1e3, points=POINTS)
    limit = ja.theory.max_margin(scores, path.selection)
    return scores, path, limit


@pytest.fixture(scope="session")
def page(solved):
    names = ["</script><b>", *(f"w{s}" for s in range(1, V))]
    return ja.explore(*solved, sequences=[3, 0, 11], tokens=names, title="A path & its limit")
