"""Clamped activations: against models in which the replacement is written into the code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.dynamics import Descent, GradientFlow, Task
from jaxattn.models.activations import Clamped

pytestmark = pytest.mark.usefixtures("x64")


class TwoHeads(ja.Model):
    """f(X) = Σ_h Σ_t q_ht x_t·v_h with q_h = softmax(X p_h); `written` has a replacement in its code."""

    written: str = ""

    def init(self, key, like, *, dtype):
        p, v = jax.random.normal(key, (2, 2, like.X.shape[-1]), dtype)
        return {"p": p, "v": v}

    def outputs(self, params, data):
        q = jax.nn.softmax(jnp.einsum("ntd,hd->nht", data.X, params["p"]), axis=2)
        q = biased(q, data) if self.written == "bias" else ja.models.activation("attention", q)
        heads = jnp.einsum("nht,ntd,hd->nh", q, data.X, params["v"])
        heads = fixed(heads, data) if self.written == "fixed" else ja.models.activation("heads", heads)
        return heads.sum(axis=1)


def biased(q, data):
    """Double the attention to the first position and normalise again."""
    q = q.at[:, :, 0].multiply(2.0)
    return q / q.sum(axis=2, keepdims=True)


def fixed(heads, data):
    """Replace the output of the second head by the mean of the tokens' first entries."""
    return heads.at[:, 1].set(data.X[:, :, 0].mean(axis=1))


CLAMPS = {"bias": {"attention": biased}, "fixed": {"heads": fixed}}


def task(written=""):
    rng = np.random.default_rng(0)
    X = jnp.asarray(rng.normal(size=(12, 4, 3)))
    data = ja.data.Vectors(targets=X[:, 0, 0], X=X)
    model = TwoHeads(written=written)
    return Task(model, ja.losses.SquaredError(), data), model.init(jax.random.key(0), data, dtype=float)


def phase(kind, **clamps):
    if kind is Descent:
        return Descent(name="a", train=("*",), optimizer="sgd", step_size=0.1, steps=20, **clamps)
    return GradientFlow(name="a", train=("*",), until_time=2.0, points=3, **clamps)


def end(kind, given, start, **clamps):
    """Return the parameters at the end of a phase."""
    return ja.dynamics.run(phase(kind, **clamps), given, start).params


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((Descent, name) for name in CLAMPS),
        *(pytest.param(GradientFlow, name, marks=pytest.mark.more) for name in CLAMPS),
    ],
)
def test_a_clamped_phase_trains_like_a_model_with_the_replacement_in_its_code(kind, name):
    given, start = task()
    found = end(kind, given, start, clamps=CLAMPS[name])
    wanted = end(kind, task(name)[0], start)
    for parameter in start:
        np.testing.assert_allclose(found[parameter], wanted[parameter], rtol=1e-12)
    # The flow has the same clamps, so that this program need not be compiled for it.
    if kind is Descent:
        free = end(kind, given, start)
        assert max(np.abs(found[x] - free[x]).max() for x in start) > 1e-3


def test_a_replaced_head_is_not_trained():
    given, start = task()
    found = end(Descent, given, start, clamps=CLAMPS["fixed"])
    np.testing.assert_array_equal(found["v"][1], start["v"][1])
    assert np.abs(found["v"][0] - start["v"][0]).max() > 1e-3


def test_activations_are_not_clamped_outside_of_the_phase():
    given, start = task()
    clamped = Clamped(given.model, CLAMPS["bias"])
    before = given.model.outputs(start, given.data.train)
    assert np.abs(clamped.outputs(start, given.data.train) - before).max() > 1e-3
    np.testing.assert_array_equal(given.model.outputs(start, given.data.train), before)


def one_layer(carry, _):
    return ja.models.activation("layer", jnp.tanh(carry)), None


def next_layer(_, z):
    return one_layer(z, None)[0]


def two_layers(z):
    return jax.lax.scan(one_layer, z, length=2)[0]


ONE_FUNCTION = {
    "scan": two_layers,
    "fori_loop": lambda z: jax.lax.fori_loop(0, 2, next_layer, z),
    "jit": jax.jit(two_layers),
    "checkpoint": jax.checkpoint(two_layers),
}


class Stacked(ja.Model):
    """f(X) = tanh(tanh(Σ_t x_t·w)), with layers in a function whose trace JAX caches."""

    how: str

    def init(self, key, like, *, dtype):
        return {"w": jax.random.normal(key, like.X.shape[-1:], dtype)}

    def outputs(self, params, data):
        return ONE_FUNCTION[self.how](data.X.sum(axis=1) @ params["w"])


def halved(layer, data):
    return layer / 2


def doubled(layer, data):
    return layer * 2


@pytest.mark.parametrize("how", ONE_FUNCTION)
def test_clamps_hold_in_functions_whose_traces_jax_caches(how):
    """Outputs before, in and after clamped calls, against the composition of NumPy functions."""
    X = np.random.default_rng(1).normal(size=(5, 2, 3))
    data, params = ja.data.Vectors(targets=jnp.zeros(5), X=jnp.asarray(X)), {"w": jnp.array([0.3, -0.2, 0.5])}
    model, z = Stacked(how=how), X.sum(axis=1) @ [0.3, -0.2, 0.5]
    for factor, clamp in ((0.5, halved), (1.0, None), (2.0, doubled), (0.5, halved), (1.0, None)):
        used = Clamped(model, {"layer": clamp}) if clamp else model
        wanted = factor * np.tanh(factor * np.tanh(z))
        np.testing.assert_allclose(used.outputs(params, data), wanted, rtol=1e-12)


@pytest.mark.parametrize("kind", [Descent, GradientFlow])
@pytest.mark.parametrize(
    ("clamps", "message"),
    [
        ({"atention": biased}, "did you mean 'attention'"),
        ({"attention": "biased"}, "function"),
        ({"heads": lambda heads, data: heads[:, 0]}, "shape"),
    ],
)
def test_clamps_that_do_not_fit_the_model_are_refused(kind, clamps, message):
    given, start = task()
    with pytest.raises(ja.InputError, match=message):
        ja.dynamics.run(phase(kind, clamps=clamps), given, start)


def test_a_clamp_holds_in_one_phase_of_a_study(tmp_path):
    given, _ = task()
    sgd = {"kind": "descent", "train": ["v"], "optimizer": "sgd", "step_size": 0.1, "steps": 5}

    def data():
        """Return the shared data."""
        return given.data.train

    study = ja.Study(
        name="clamped",
        seeds=2,
        dtype="float64",
        model=TwoHeads(),
        loss="squared_error",
        data={"kind": data},
        phases=[sgd | {"name": "held", "clamps": {"heads": fixed}}, sgd | {"name": "free"}],
    )
    results = study.run(tmp_path, quiet=True)
    ends = (("held", 0), ("held", None), ("free", None))
    start, held, free = (results.params(phase=phase, step=step)["v"] for phase, step in ends)
    np.testing.assert_array_equal(held[1], start[1])
    assert np.abs(free[1] - held[1]).max() > 1e-3
