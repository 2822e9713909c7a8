"""Models whose outputs, linear scores and token scores are, or are not, the same function."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.models.linearity import check_linear_scores

CORPUS = ja.data.from_sequences([[0, 2, 3], [1, 2], [1, 1, 3], [0, 3]], labels=[1, -1, 1, -1], vocab_size=4)


class Plain(ja.TokenModel, frozen=True, kw_only=True):
    """The one-layer model, written as a custom model."""

    linear_in: ClassVar[str] = "p"

    def init(self, key, like, *, dtype):
        return ja.models.one_layer.init(key, vocab_size=like.vocab_size, dim=3, dtype=dtype)

    def scores_and_values(self, params):
        return params.E @ params.p, params.E @ params.v

    def scores(self, params, data):
        return ja.theory.Scores(params.E, data, params.E @ params.v)


class Halved(Plain, frozen=True, kw_only=True):
    def scores(self, params, data):
        return ja.theory.Scores(params.E / 2, data, params.E @ params.v)


class Negative(Plain, frozen=True, kw_only=True):
    def scores(self, params, data):
        return ja.theory.Scores(params.E, data, -params.E @ params.v)


class Bent(Plain, frozen=True, kw_only=True):
    """A model whose scores are not linear; the keys are their derivative at p."""

    def scores_and_values(self, params):
        return params.E @ jnp.tanh(params.p), params.E @ params.v

    def scores(self, params, data):
        return ja.theory.Scores(params.E * (1 - jnp.tanh(params.p) ** 2), data, params.E @ params.v)


class Shifted(Plain, frozen=True, kw_only=True):
    """Scores with a part that does not depend on p."""

    def scores_and_values(self, params):
        return params.E @ params.p + params.E[:, 0], params.E @ params.v


class MovesValues(Plain, frozen=True, kw_only=True):
    """Values that depend on p."""

    def scores_and_values(self, params):
        return params.E @ params.p, params.E @ (params.v + params.p)

    def scores(self, params, data):
        return ja.theory.Scores(params.E, data, params.E @ (params.v + params.p))


class Tables(Plain, frozen=True, kw_only=True):
    """Token scores that are not those of the outputs."""

    def outputs(self, params, data):
        return ja.attention.attend(data, params.E @ params.p, params.E @ params.v)

    def scores_and_values(self, params):
        return -params.E @ params.p, params.E @ params.v


class Fewer(Plain, frozen=True, kw_only=True):
    def scores(self, params, data):
        return ja.theory.Scores(params.E, data.take(jnp.arange(2)), params.E @ params.v)


class OtherKeys(ja.models.OneLayer, frozen=True, kw_only=True):
    """The built-in model with scores of another function."""

    def scores(self, params, data):
        return ja.theory.Scores(params.E / 2, data, params.E @ params.v)


class Constant(Plain, frozen=True, kw_only=True):
    """A model that is the same function in float32, and the same scores up to a constant."""

    def scores_and_values(self, params):
        return params.E @ params.p + params.p.sum(), (params.E @ params.v).astype(jnp.float32)

    def scores(self, params, data):
        return ja.theory.Scores(params.E - 1, data, params.E @ params.v)


DIFFERENT = {
    Halved: "scores",
    Negative: "scores",
    Bent: "scores",
    Shifted: "scores",
    MovesValues: "scores",
    Tables: "scores_and_values",
    OtherKeys: "scores",
}


def start(model, zero=()):
    params = ja.models.one_layer.init(jax.random.key(0), vocab_size=4, dim=3)
    return params.replace(**{name: jnp.zeros_like(getattr(params, name)) for name in zero})


@pytest.mark.parametrize("kind", [Plain, Constant])
@pytest.mark.parametrize("zero", [(), ("p",), ("E", "p", "v")])
def test_models_with_the_same_functions_are_accepted(kind, zero):
    check_linear_scores(kind(), start(kind, zero), CORPUS)


@pytest.mark.parametrize(("kind", "method"), DIFFERENT.items())
@pytest.mark.parametrize("zero", [(), ("p",), ("E", "p", "v")])
def test_models_with_different_functions_are_rejected(kind, method, zero):
    model = kind(dim=3) if kind is OtherKeys else kind()
    message = rf"^{kind.__name__}\.outputs and {kind.__name__}\.{method} are not the same function of 'p'"
    with pytest.raises(ja.InputError, match=message):
        check_linear_scores(model, start(kind, zero), CORPUS)


def test_scores_of_other_examples_are_rejected():
    with pytest.raises(ja.InputError, match=r"Fewer\.outputs returns shape \(4,\), but attention with"):
        check_linear_scores(Fewer(), start(Fewer), CORPUS)


def test_largest_difference_is_reported():
    """If all scores are 0, outputs of the negative values differ by twice the largest output."""
    params = start(Negative, ("p",))
    values = np.asarray(params.E @ params.v, float)
    largest = max(abs(values[list(tokens)].mean()) for tokens in ([0, 2, 3], [1, 2], [1, 1, 3], [0, 3]))
    with pytest.raises(ja.InputError, match=f"differ by {2 * largest:.3g} from"):
        check_linear_scores(Negative(), params, CORPUS)


class Matrix(NamedTuple):
    W: jax.Array
    scale: jax.Array


class OfVectors(ja.Model[ja.data.Vectors], frozen=True, kw_only=True):
    """Scores x·W z of vectors, with a matrix and a parameter that is not trained."""

    takes: ClassVar = ja.data.Vectors
    linear_in: ClassVar[str] = "W"
    power: int = 1

    def outputs(self, params, data):
        scores = jnp.einsum("ntd,de,ne->nt", data.X, params.W**self.power, data.z)
        return jnp.einsum("nt,nt->n", jax.nn.softmax(scores, axis=1), params.scale * data.X[:, :, 0])

    def scores(self, params, data):
        return ja.theory.scores.from_query(
            data.X, data.z, data.targets, values=params.scale * data.X[:, :, 0]
        )


def test_scores_of_vectors_are_compared():
    keys = jax.random.split(jax.random.key(1), 3)
    X, z = jax.random.normal(keys[0], (5, 3, 2)), jax.random.normal(keys[1], (5, 4))
    data = ja.data.Vectors(targets=jnp.array([1, -1, 1, 1, -1]), X=X, z=z, classes=2)
    params = Matrix(jax.random.normal(keys[2], (2, 4)), jnp.ones(()))
    check_linear_scores(OfVectors(), params, data)
    with pytest.raises(ja.InputError, match=r"OfVectors\.scores are not the same function of 'W'"):
        check_linear_scores(OfVectors(power=3), params, data)


def test_flow_without_a_study_rejects_such_a_model():
    flow = ja.dynamics.ExactFlow(name="f", until_norm=1.0, points=3)
    with pytest.raises(ja.InputError, match=r"Bent\.outputs and Bent\.scores are not the same function"):
        ja.dynamics.run(flow, ja.dynamics.Task(Bent(), data=CORPUS), start(Bent))
