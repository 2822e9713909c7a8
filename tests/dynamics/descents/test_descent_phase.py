import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import jaxattn as ja
from jaxattn.dynamics import Descent, Task, optimizer, run, schedule
from jaxattn.dynamics.descents.optimizers import check_options


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("constant", lambda t: 1),
        ("cosine", lambda t: (1 + np.cos(np.pi * t)) / 2),
        ("linear", lambda t: 1 - t),
        ("exponential", lambda t: 0.01**t),
    ],
)
def test_schedules_match_their_formulas(name, formula):
    made = jax.jit(schedule(name, 0.3, 100))
    for step in (0, 1, 50, 99, 100):
        np.testing.assert_allclose(made(step), 0.3 * formula(step / 100), rtol=1e-5, atol=1e-7)


def test_inverse_sqrt_schedule_with_warmup_matches_its_formula():
    made = schedule("inverse_sqrt", 0.3, 100, warmup=10)
    np.testing.assert_allclose([made(0), made(5), made(10), made(13)], [0, 0.15, 0.3, 0.15], rtol=1e-6)


@pytest.mark.parametrize("name", ["constant", "cosine", "linear", "exponential", "inverse_sqrt"])
def test_schedules_are_accurate_in_float64(name, x64):
    """Optax computes with an integer count in float32."""
    made = jax.jit(schedule(name, 0.3, 20, warmup=6))
    formulas = {
        "constant": lambda k: 1.0,
        "cosine": lambda k: (1 + np.cos(np.pi * k / 14)) / 2,
        "linear": lambda k: 1 - k / 14,
        "exponential": lambda k: 0.01 ** (k / 14),
        "inverse_sqrt": lambda k: (1 + k) ** -0.5,
    }
    for step in (1, 5, 9, 13):
        expected = 0.3 * (step / 6 if step < 6 else formulas[name](step - 6))
        np.testing.assert_allclose(made(jnp.int32(step)), expected, rtol=1e-14)


@pytest.mark.parametrize(("key", "value"), [("schedule", "cosine"), ("warmup", 5)])
@pytest.mark.parametrize("name", ["polyak", "sm3", "rprop"])
def test_schedule_is_rejected_for_optimizers_with_a_constant_step_size(name, key, value):
    phase = Descent(name="q", train=("p",), optimizer=name, step_size=1.0, steps=10, **{key: value})
    with pytest.raises(ja.InputError, match=f"{key}: {name} requires a constant step size"):
        phase.check()


def last_of(transformation, steps=4):
    """Return the parameters after a few steps on a quadratic function, (3,)."""
    transformation = optax.with_extra_args_support(transformation)

    def loss(theta):
        return (np.float32([1, 3, 9]) * theta["p"] ** 2).sum()

    def step(_, reached):
        theta, state = reached
        value, gradient = jax.value_and_grad(loss)(theta)
        updates, state = transformation.update(gradient, state, theta, value=value)
        return optax.apply_updates(theta, updates), state

    @jax.jit
    def train(theta):
        return jax.lax.fori_loop(0, steps, step, (theta, transformation.init(theta)))[0]

    return train({"p": np.float32([1, -2, 0.5])})["p"]


@pytest.mark.parametrize(
    ("name", "options", "theirs"),
    [
        (
            "adamw",
            {"weight_decay": 0.3, "epsilon": 1e-3},
            lambda: optax.adamw(0.1, weight_decay=0.3, eps=1e-3),
        ),
        ("adam", {"b1": 0.5}, lambda: optax.adam(0.1, b1=0.5)),
        ("sgd", {"momentum": 0.9, "nesterov": True}, lambda: optax.sgd(0.1, momentum=0.9, nesterov=True)),
        ("rmsprop", {"decay": 0.8}, lambda: optax.rmsprop(0.1, decay=0.8)),
        ("lion", {}, lambda: optax.lion(0.1)),
        ("nadam", {"b1": 0.5}, lambda: optax.adam(0.1, b1=0.5, nesterov=True)),
        ("nadamw", {"weight_decay": 0.3}, lambda: optax.adamw(0.1, weight_decay=0.3, nesterov=True)),
        ("signum", {"beta": 0.5}, lambda: optax.signum(0.1, beta=0.5)),
        ("adagrad", {}, lambda: optax.adagrad(0.1)),
        ("lamb", {"weight_decay": 0.1}, lambda: optax.lamb(0.1, weight_decay=0.1)),
    ],
)
def test_optax_optimizers_are_available_by_name(name, options, theirs):
    np.testing.assert_array_equal(last_of(optimizer(name, 0.1, **options)), last_of(theirs()))


def test_step_size_and_options_can_be_traced():
    def together(name, **options):
        keys, values = zip(*options.items(), strict=True)
        each = jax.vmap(lambda x, *y: last_of(optimizer(name, x, **dict(zip(keys, y, strict=True)))))
        return jax.jit(each)(jnp.array([0.1, 0.2]), *map(jnp.array, values))

    for name, options in (
        ("adamw", {"weight_decay": [0.0, 0.3], "epsilon": [1e-8, 1e-3], "b1": [0.9, 0.5]}),
        ("sgd", {"momentum": [0.0, 0.9]}),
        ("polyak", {"loss_floor": [0.0, 1.0]}),
        ("signum", {"beta": [0.9, 0.5]}),
    ):
        for lane, found in enumerate(together(name, **options)):
            own = {key: values[lane] for key, values in options.items()}
            alone = last_of(optimizer(name, [0.1, 0.2][lane], **own))
            np.testing.assert_allclose(found, alone, rtol=1e-5, err_msg=name)


def test_custom_optax_chain_is_accepted():
    def clipped(step_size, *, norm: float, decay: float = 0.0):
        return optax.chain(optax.clip_by_global_norm(norm), optax.sgd(step_size, momentum=decay))

    got = last_of(optimizer(clipped, 0.1, norm=0.5, decay=0.9))
    np.testing.assert_array_equal(
        got, last_of(optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1, momentum=0.9)))
    )
    check_options(clipped, ["norm"])
    for options, message in (
        ({}, "norm: clipped requires this option"),
        ({"norm": 1.0, "decays": 0.1}, "decays: not an option of clipped; did you mean 'decay'?"),
        (
            {"norm": 1.0, "step_size": 0.1},
            "step_size: not accepted as an option of clipped; set the phase's step_size instead",
        ),
    ):
        with pytest.raises(ja.InputError, match=re.escape(message)):
            check_options(clipped, options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("adamv", [], "unknown optimiser 'adamv'; did you mean 'adam"),
        ("polyak_sgd", [], "did you mean 'polyak'?"),
        ("noisy_sgd", [], "'noisy_sgd' is not supported, because it adds noise"),
        ("sam", [], "'sam' is not supported, because it needs the gradient at a second point in every step"),
        ("lookahead", [], "'lookahead' is not supported, because it needs a second, slow copy"),
        ("muon", [], "use a function of the step size that returns optax.contrib.muon(step_size)"),
        ("scale_by_adam", [], "unknown optimiser 'scale_by_adam'"),
        ("adamw", ["weight_decy"], "weight_decy: not an option of adamw; did you mean 'weight_decay'?"),
        ("adamw", ["learning_rate"], "learning_rate: not accepted as an option of adamw"),
        ("adamw", ["momentum"], "momentum: not an option of adamw"),
        ("sgd", ["epsilon"], "epsilon: not an option of sgd"),
        ("sign_sgd", ["momentum"], "momentum: not an option of sign_sgd"),
        ("sgd", ["b1"], "b1: not an option of sgd; known: momentum, nesterov"),
    ],
)
def test_unknown_optimizer_or_option_error_suggests_the_closest_name(name, options, message):
    with pytest.raises(ja.InputError, match=re.escape(message)) as caught:
        check_options(name, options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["normalized", "polyak", "sgd", "adam"])
def test_zero_gradient_does_not_move_parameters(name):
    made = optax.with_extra_args_support(optimizer(name, 0.1))
    theta = {"p": np.float32([1, -2]), "v": np.float32(3)}
    still = jax.tree.map(np.zeros_like, theta)
    updates, _ = jax.jit(lambda: made.update(still, made.init(theta), theta, value=np.float32(0.7)))()
    assert all((x == 0).all() for x in jax.tree.leaves(updates))


def test_normalized_step_has_length_step_size():
    made = optimizer("normalized", 0.1)
    gradients = {"p": np.float32([3e-5, 0.0]), "v": np.float32(-4e-5)}
    updates, _ = jax.jit(lambda x: made.update(x, made.init(x)))(gradients)
    np.testing.assert_allclose(updates["p"], [-0.06, 0], rtol=1e-6)
    np.testing.assert_allclose(updates["v"], 0.08, rtol=1e-6)


def _of_optax():
    """Return the names of the functions of a learning rate that optax exports."""
    names = [name for name in dir(optax) if not name.startswith(("_", "scale_by_", "noisy_", "polyak_"))]
    called = [
        name
        for name in names
        if callable(getattr(optax, name)) and not isinstance(getattr(optax, name), type)
    ]
    return [name for name in called if "learning_rate:" in str(_signature(getattr(optax, name)))]


def _signature(function):
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return ""


class Scaled(ja.Model, kw_only=True):
    """Model whose outputs are three multiples of p."""

    def outputs(self, params, data):
        return jnp.array([1.0, 2.0, 3.0]) * params["p"]


QUADRATIC = Task(Scaled(), ja.losses.SquaredError(), ja.Dataset(targets=np.array([1.0, 0.5, -2.0])))
START = {"p": np.array([1.0, -2.0, 0.5])}


def quadratic(params):
    """Return the loss of the same task, (1/3) Σ (k p_k - y_k)² / 2."""
    return ((jnp.array([1.0, 2.0, 3.0]) * params["p"] - QUADRATIC.data.train.targets) ** 2).mean() / 2


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", _of_optax())
def test_every_optimizer_of_optax_takes_the_steps_of_optax(name, x64):
    phase = Descent(name="q", train=("p",), optimizer=name, step_size=0.1, steps=2)
    found = run(phase, QUADRATIC, START).params["p"]
    made = optax.with_extra_args_support(getattr(optax, name)(0.1))

    @jax.jit
    def step(params, state):
        value, gradient = jax.value_and_grad(quadratic)(params)
        given = {"value": value, "grad": gradient, "value_fn": quadratic}
        updates, state = made.update(gradient, state, params, **given)
        return optax.apply_updates(params, updates), state

    wanted, state = START, jax.jit(made.init)(START)
    for _ in range(2):
        wanted, state = step(wanted, state)
    np.testing.assert_allclose(found, wanted["p"], rtol=1e-9)
    assert (found != START["p"]).any()


def _looking_ahead(step_size):
    return optax.lookahead(optax.sgd(step_size), 5, 0.5)


def _estimating(step_size):
    return optax.contrib.sophia(step_size)


def _faulty(step_size):
    def update(gradients, state, params=None):
        return gradients["q"], state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


@pytest.mark.parametrize("made", [_looking_ahead, _estimating])
def test_transformation_of_another_protocol_is_rejected(made):
    phase = Descent(name="q", train=("p",), optimizer=made, step_size=0.1, steps=2)
    with pytest.raises(
        ja.InputError, match=r"^optimizer: this optax transformation cannot take a step \("
    ) as caught:
        run(phase, QUADRATIC, START)
    assert "\n" not in str(caught.value)


def test_error_in_a_custom_transformation_is_not_hidden():
    phase = Descent(name="q", train=("p",), optimizer=_faulty, step_size=0.1, steps=2)
    with pytest.raises(KeyError):
        run(phase, QUADRATIC, START)
