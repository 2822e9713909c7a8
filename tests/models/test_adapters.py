"""Modules of Flax and Equinox as models, against the same functions written out."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import jaxattn as ja
from jaxattn.core import pytrees
from jaxattn.models import from_equinox
from jaxattn.models.adapters import first_array


class Points(ja.Dataset):
    X: jax.Array


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(1)(jnp.tanh(linen.Dense(4, name="hidden")(x)))


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(3, 4, rngs=rngs)
        self.head = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x):
        return self.head(jnp.tanh(self.hidden(x)))


def mlp(key):
    return eqx.nn.MLP(3, 1, 4, 1, activation=jnp.tanh, key=key)


ADAPTED = {
    "linen": ja.models.from_linen(Linen()),
    "nnx": ja.models.from_nnx(Nnx),
    "equinox": from_equinox(mlp),
}
NAMES = {
    "linen": ("hidden.kernel", "hidden.bias", "Dense_0.kernel", "Dense_0.bias"),
    "nnx": ("hidden.kernel", "hidden.bias", "head.kernel", "head.bias"),
    "equinox": ("layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"),
}


@pytest.fixture
def points(rng):
    targets, X = np.array([1, -1] * 5, np.int32), rng.normal(size=(10, 3)).astype(np.float32)
    return Points(targets=jax.device_put(targets), X=jax.device_put(X))


def init(model, points):
    """Initialise a model in one program."""
    return jax.jit(lambda key: model.init(key, points, dtype=jnp.float32))(jax.random.key(0))


def outputs(model, params, points):
    """Compute the outputs of a model in one program."""
    return jax.jit(model.outputs)(params, points)


@pytest.mark.parametrize("library", ADAPTED)
def test_outputs_match_an_explicit_formula(library, points):
    model = ADAPTED[library]
    params = init(model, points)
    assert set(pytrees.names(params)) == set(NAMES[library])
    W, b, w, c = (np.asarray(pytrees.get(params, name)) for name in NAMES[library])
    if library == "equinox":
        W, w = W.T, w.T
    wanted = (np.tanh(np.asarray(points.X) @ W + b) @ w + c)[:, 0]
    found = outputs(model, params, points)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("library", ADAPTED)
@pytest.mark.more
def test_seeds_differ_and_vmap_matches_a_loop_over_seeds(library, points):
    model = ADAPTED[library]
    keys = jax.random.split(jax.random.key(1), 3)
    params = jax.vmap(lambda key: model.init(key, points, dtype=jnp.float32))(keys)
    found = jax.vmap(model.outputs, (0, None))(params, points)
    for number, key in enumerate(keys):
        own = model.init(key, points, dtype=jnp.float32)
        np.testing.assert_allclose(found[number], model.outputs(own, points), rtol=1e-5, atol=1e-6)
    assert len(np.unique(np.asarray(found)[:, 0])) == 3


@pytest.mark.parametrize("library", ADAPTED)
@pytest.mark.more
def test_gradients_of_selected_parameters_match_finite_differences(library, points):
    model = ADAPTED[library]
    params = init(model, points)
    pattern = NAMES[library][0].rpartition(".")[0]
    _, gradients = ja.dynamics.loss_and_gradients(params, points, [f"{pattern}.*"], model.outputs)
    assert set(gradients) == set(NAMES[library][:2])
    name = NAMES[library][0]
    step = 1e-2 * gradients[name] / jnp.linalg.norm(gradients[name])

    def loss_at(sign):
        moved = pytrees.replace(params, **{name: pytrees.get(params, name) + sign * step})
        return ja.dynamics.loss(moved, points, model.outputs)

    slope = (loss_at(1) - loss_at(-1)) / 2e-2
    np.testing.assert_allclose(slope, jnp.linalg.norm(gradients[name]), rtol=1e-2)


def test_parameters_use_the_dtype_of_the_study(points):
    with jax.enable_x64(True):
        for model in ADAPTED.values():
            init = partial(model.init, dtype=jnp.float64)
            params = jax.eval_shape(init, jax.random.key(0), points)
            assert {x.dtype for x in pytrees.leaves(params).values()} == {np.dtype(np.float64)}


class Normalised(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.BatchNorm(use_running_average=False)(x)


class Dropping(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dropout(0.5, deterministic=False)(linen.Dense(1)(x))


class NnxDropping(nnx.Module):
    def __init__(self, rngs):
        self.linear, self.dropout = nnx.Linear(3, 1, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.linear(x))


def dropping(key):
    return eqx.nn.Sequential([eqx.nn.Linear(3, 1, key=key), eqx.nn.Dropout(0.5)])


def normalised(key):
    return eqx.nn.BatchNorm(3, axis_name="batch", mode="batch")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            ja.models.from_linen(Normalised()),
            "from_linen: the module has mutable state 'batch_stats'; remove the layers",
        ),
        (
            ja.models.from_linen(Dropping()),
            "from_linen: the module requires a random key at every call; disable",
        ),
        (
            ja.models.from_nnx(NnxDropping),
            r"from_nnx: the module has mutable state or PRNG keys \(dropout.rngs.\w+\); remove",
        ),
        (from_equinox(dropping), "from_equinox: the module requires a random key at every call; disable"),
        (from_equinox(normalised), "from_equinox: the module has mutable state; remove the layers"),
    ],
)
def test_modules_with_state_or_keys_raise_one_line_errors(model, words, points):
    with pytest.raises(ja.InputError, match=words):
        model.outputs(model.init(jax.random.key(0), points, dtype=jnp.float32), points)


class NnxEvaluated(nnx.Module):
    def __init__(self, rngs, random=False, training=False):
        self.linear = nnx.Linear(3, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(3, use_running_average=not training, epsilon=0.0, rngs=rngs)
        self.norm.mean[...] = jnp.array([1.0, 2.0, 3.0], jnp.float32)
        self.dropout = nnx.Dropout(0.5, deterministic=True, rngs=rngs)
        self.order = nnx.Variable(jnp.array([2, 0, 1]))
        self.scale = nnx.Variable(jax.random.normal(rngs.params(), ()) if random else jnp.array(0.5))

    def __call__(self, x):
        return self.scale[...] * self.dropout(self.norm(self.linear(x)))[:, self.order[...]][:, 0]


def test_nnx_variables_other_than_parameters_are_constants(points):
    model = ja.models.from_nnx(NnxEvaluated)
    params = init(model, points)
    assert set(pytrees.names(params)) == {"linear.kernel", "linear.bias", "norm.scale", "norm.bias"}
    W, b = np.asarray(params["linear"]["kernel"]), np.asarray(params["linear"]["bias"])
    wanted = 0.5 * ((np.asarray(points.X) @ W + b - [1, 2, 3])[:, 2])
    np.testing.assert_allclose(outputs(model, params, points), wanted, rtol=1e-5, atol=1e-6)
    with jax.enable_x64(True):
        params = jax.eval_shape(partial(model.init, dtype=jnp.float64), jax.random.key(0), points)
        exact = points.replace(X=np.asarray(points.X, np.float64))
        assert jax.eval_shape(model.outputs, params, exact).dtype == jnp.float64


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"training": True}, r"mutable state or PRNG keys \(norm.mean\); remove .* or call module.eval\(\)"),
        ({"random": True}, r"constant scale depends on the PRNG key; make it an nnx.Param, .*\"!scale\""),
    ],
)
def test_nnx_variables_that_are_not_constant_raise_one_line_errors(settings, words, points):
    model = ja.models.from_nnx(lambda rngs: NnxEvaluated(rngs, **settings))
    with pytest.raises(ja.InputError, match=words) as caught:
        model.outputs(model.init(jax.random.key(0), points, dtype=jnp.float32), points)
    assert "\n" not in str(caught.value)


class Boxed(linen.Module):
    @linen.compact
    def __call__(self, x):
        weights = linen.with_partitioning(linen.initializers.lecun_normal(), ("rows", "columns"))
        hidden = linen.Dense(4, name="hidden", kernel_init=weights)(x)
        logical = linen.with_logical_partitioning(linen.initializers.lecun_normal(), ("embed", "out"))
        return linen.Dense(1, kernel_init=logical)(jnp.tanh(hidden))


class NnxBoxed(Nnx):
    def __init__(self, rngs):
        super().__init__(rngs)
        weights = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("rows", "columns"))
        self.hidden = nnx.Linear(3, 4, kernel_init=weights, rngs=rngs)


@pytest.mark.parametrize(
    ("boxed", "library"),
    [(ja.models.from_linen(Boxed()), "linen"), (ja.models.from_nnx(NnxBoxed), "nnx")],
    ids=["linen", "nnx"],
)
def test_axis_names_of_parameters_are_ignored(boxed, library, points):
    """The mesh of a study has other axes than those that the parameters name."""
    params = init(ADAPTED[library], points)
    mesh = jax.make_mesh((1,), ("runs",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        found = jax.jit(lambda key: boxed.init(key, points, dtype=jnp.float32))(jax.random.key(0))
    assert {name: x.shape for name, x in pytrees.leaves(found).items()} == {
        name: x.shape for name, x in pytrees.leaves(params).items()
    }
    wanted = outputs(ADAPTED[library], found, points)
    np.testing.assert_array_equal(outputs(boxed, found, points), wanted)


def test_custom_inputs_and_per_example_modules_are_supported(points):
    doubled = ja.models.from_linen(Linen(), inputs=lambda data: 2 * data.X)
    params = init(doubled, points)
    twice = points.replace(X=2 * points.X)
    np.testing.assert_array_equal(outputs(doubled, params, points), outputs(ADAPTED["linen"], params, twice))
    each = ja.models.from_linen(Linen(), per_example=True)
    np.testing.assert_allclose(
        outputs(each, init(each, points), points),
        outputs(ADAPTED["linen"], params, points),
        rtol=1e-5,
        atol=1e-6,
    )
    assert first_array(points) is points.X


def test_padded_data_require_an_explicit_argument():
    bags = ja.data.from_sequences([[0, 2, 2], [1, 2]], [1, -1], vocab_size=3)
    tokens = ja.data.Vectors(targets=jnp.array([1, -1]), X=jnp.ones((2, 3, 4)), mask=jnp.ones((2, 3), bool))
    for data, words in (
        (bags, "bags of tokens do not form a single array"),
        (tokens, "Vectors may be padded"),
    ):
        with pytest.raises(ja.InputError, match=words):
            first_array(data)
