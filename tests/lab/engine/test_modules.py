"""Modules of Flax and Equinox in studies: trained, stopped, resumed bitwise, read back."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import jaxattn as ja
from jaxattn.core import pytrees


class Points(ja.Dataset):
    X: jax.Array

    @property
    def num_classes(self):
        return 2


def points(key, *, sequences: int = 32):
    X = jax.random.normal(key, (sequences, 3))
    return Points(targets=jnp.where(X[:, 0] * X[:, 1] > 0, 1, -1), X=X)


class Mlp(linen.Module):
    width: int

    @linen.compact
    def __call__(self, x):
        return linen.Dense(1, name="head")(jnp.tanh(linen.Dense(self.width, name="hidden")(x)))


class NnxMlp(nnx.Module):
    def __init__(self, width, rngs):
        self.hidden, self.head = nnx.Linear(3, width, rngs=rngs), nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, x):
        return self.head(jnp.tanh(self.hidden(x)))


class EqxMlp(eqx.Module):
    hidden: eqx.nn.Linear
    head: eqx.nn.Linear

    def __init__(self, width, key):
        self.hidden = eqx.nn.Linear(3, width, key=key)
        self.head = eqx.nn.Linear(width, 1, key=jax.random.fold_in(key, 1))

    def __call__(self, x):
        return self.head(jnp.tanh(self.hidden(x)))


def with_linen(*, width: int = 4):
    return ja.models.from_linen(Mlp(width))


def with_nnx(*, width: int = 4):
    return ja.models.from_nnx(lambda rngs: NnxMlp(width, rngs))


def with_equinox(*, width: int = 4):
    return ja.models.from_equinox(lambda key: EqxMlp(width, key))


def phases(**phase):
    return [
        {"name": "all", "kind": "descent", "train": ["*"], "optimizer": "adam", "step_size": 0.1, "steps": 8},
        {"name": "head", "kind": "gradient_flow", "train": ["head"], "until_time": 3.0, "points": 5} | phase,
    ]


def study(model, **phase):
    return ja.Study(name="modules", data=points, model=model, phases=phases(**phase), seeds=2)


@pytest.mark.parametrize("model", [with_linen, with_nnx, with_equinox])
@pytest.mark.more
def test_module_trains_and_resumes_bitwise_identically(model, go, stop, every_step, assert_same, tmp_path):
    made = study(model)
    whole, _ = go(tmp_path / "whole", made)
    assert not whole.failures
    for after in (5, 10):
        place = tmp_path / f"stopped{after}"
        stop(place, made, after, intervals=every_step)
        go(place, made)
        assert_same(tmp_path / "whole", place)
    records = ja.load(tmp_path / "whole").records
    losses = records.query("metric == 'loss' and seed == 1")
    assert losses.query("phase == 'all'").value.iloc[-1] < losses.query("phase == 'all'").value.iloc[0]
    assert losses.query("phase == 'head'").value.is_monotonic_decreasing


@pytest.mark.more
def test_parameters_are_loaded_by_path(go, tmp_path):
    made = study(with_linen)
    go(tmp_path / "run", made)
    results = ja.load(tmp_path / "run")
    before, after = (results.params(seed=1, phase=phase) for phase in ("all", "head"))
    assert pytrees.names(after) == ("head.bias", "head.kernel", "hidden.bias", "hidden.kernel")
    np.testing.assert_array_equal(pytrees.get(after, "hidden.kernel"), pytrees.get(before, "hidden.kernel"))
    assert (pytrees.get(after, "head.kernel") != pytrees.get(before, "head.kernel")).all()


def applied(kind, params, x):
    """Call the module as its library does."""
    if kind is with_linen:
        return Mlp(4).apply({"params": params}, x)[:, 0]
    return params(x)[:, 0] if kind is with_nnx else jax.vmap(params)(x)[:, 0]


@pytest.mark.parametrize(
    "kind", [with_nnx, *(pytest.param(kind, marks=pytest.mark.more) for kind in (with_linen, with_equinox))]
)
def test_parameters_of_a_module_are_what_its_library_takes(kind, tmp_path):
    """The loss of the module itself is that of the run, in the session of the run and from its folder."""
    made = ja.Study(name="modules", data=points, model=kind, phases=phases()[:1], seeds=2)
    session = made.run(tmp_path / "run", quiet=True, report=False)
    train = made.dataset(1).train
    losses = session.records.query("metric == 'loss' and seed == 1").value
    read = ja.load(tmp_path / "run")
    plain = read.params(seed=1)
    for params in (session.params(seed=1), read.params(seed=1, model=kind)):
        outputs = applied(kind, params, train.X)
        found = jnp.log1p(jnp.exp(-train.targets * outputs)).mean()
        np.testing.assert_allclose(found, losses.iloc[-1], rtol=1e-5)
        np.testing.assert_allclose(kind().outputs(params, train), outputs, rtol=1e-6)
        # The order of the leaves is the same everywhere.
        jax.tree.map(np.testing.assert_array_equal, params, session.params(seed=1))
    assert set(plain) == {"hidden", "head"}
    if kind is with_linen:
        jax.tree.map(np.testing.assert_array_equal, plain, session.params(seed=1))


@pytest.mark.more
def test_width_of_a_module_can_be_swept(go, tmp_path):
    made = ja.Study(
        name="widths",
        data=points,
        model={"kind": with_nnx},
        phases=phases(),
        axes={"model.width": [2, 3]},
        seeds=2,
    )
    go(tmp_path / "run", made)
    shapes = [ja.load(tmp_path / "run").params(seed=0, cell=cell)["hidden"] for cell in (0, 1)]
    assert [x["kernel"].shape for x in shapes] == [(3, 2), (3, 3)]


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (
            ["hiden.*"],
            r"phases\[1\].train: hiden.\*: not a parameter of the model; did you mean 'hidden.\w+'",
        ),
        (["head", "tail"], r"phases\[1\].train: tail: not a parameter of the model"),
    ],
)
def test_pattern_that_matches_nothing_is_rejected_before_the_run(train, words, tmp_path):
    with pytest.raises(ja.InputError, match=words):
        study(with_linen, train=train).run(tmp_path / "run", quiet=True)


@pytest.mark.more
def test_implicit_and_explicit_gradient_flow_end_at_the_same_point(tmp_path):
    """Two seeds are on two devices, where possible."""
    ends = []
    for solver in ("explicit", "implicit"):
        flow = ja.dynamics.GradientFlow(name="flow", train=("p", "v"), until_time=10.0, solver=solver)
        data = ja.data.Independent(vocab_size=8, relevant=4, length=4, sequences=16)
        study = ja.Study(name="flows", seeds=2, data=data, model=ja.models.OneLayer(dim=4), phases=[flow])
        results = study.run(tmp_path / solver, quiet=True)
        ends.append([np.asarray(results.params(seed=seed).v) for seed in range(2)])
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-5)
