"""A custom flow written as a function: in a study, stopped and resumed, and compared with the exact flow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.base import Task
from jaxattn.lab.engine.programs import seed_keys
from jaxattn.lab.storage import memo


@ja.declare(train=["p"])
def euler(params, task, *, points: ja.PositiveInt = 9, until_time: float = 1e3, substeps: int = 40):
    """Euler steps of dp/dt = -∂L/∂p, recorded at log-spaced times."""

    def loss(p):
        outputs = task.model.outputs(params.replace(p=p), task.data.train)
        return task.loss(outputs, task.data.train.targets).mean()

    def interval(p, ends):
        size = (ends[1] - ends[0]) / substeps
        p = jax.lax.fori_loop(0, substeps, lambda _, p: p - size.astype(p.dtype) * jax.grad(loss)(p), p)
        return p, p

    times = jnp.append(0, jnp.geomspace(0.1, until_time, points - 1))
    _, rows = jax.lax.scan(interval, params.p, (times[:-1], times[1:]))
    p = jnp.concatenate([params.p[None], rows])
    return ja.dynamics.RecordedPath(params={"p": p}, metrics={"time": times}, status=ja.dynamics.Stop.TIME)


DATA = {"kind": "assumption1", "vocab_size": 12, "relevant": 4, "length": 4, "sequences": 20}
EMBED = {"kind": "one_step", "name": "embed", "step_size": 20.0}


def study(flow, seeds=2, embed=EMBED, **settings):
    phases = [embed, {"kind": flow, "name": "flow", **settings}]
    return ja.Study(name="own", data=DATA, model=ja.models.OneLayer(dim=16), phases=phases, seeds=seeds)


@pytest.mark.more
def test_custom_flow_runs_and_resumes_bitwise_identically(go, stop, every_step, assert_same, tmp_path):
    made = study(euler, points=5)
    whole, _ = go(tmp_path / "whole", made)
    assert not whole.failures
    stop(tmp_path / "stopped", made, 8, intervals=every_step)
    (one,) = memo.partials(tmp_path / "stopped")
    assert (one.record.phase, one.record.step) == (1, 2)
    go(tmp_path / "stopped", made)
    assert_same(tmp_path / "whole", tmp_path / "stopped")
    rows = ja.load(tmp_path / "whole").records.query("phase == 'flow' and seed == 0").set_index("metric")
    np.testing.assert_allclose(rows.loc["time", "value"], [0, *np.geomspace(0.1, 1e3, 4)], rtol=1e-6)
    assert rows.loc["came_to_end", "value"].tolist() == [0, 0, 0, 0, 1]
    assert rows.loc["loss", "value"].is_monotonic_decreasing


class Noise(ja.Phase, frozen=True, kw_only=True):
    """Adds noise to p with a key that depends on the number of the step, which the phase does not count."""

    train: tuple[str, ...] = ("p",)
    steps: int = 12

    def init(self, task, params, key):
        return super().init(task, params, key).replace(key=jax.random.key_data(key))

    def step(self, task, state):
        p = state.params.p + noise(jax.random.wrap_key_data(state.key), state.step)
        return state.replace(params=state.params.replace(p=p))


class Uncounted(Noise, frozen=True, kw_only=True):
    """A phase with its own `advance`, which does not count either."""

    def advance(self, task, state, steps):
        return jax.lax.fori_loop(0, steps, lambda _, here: self.step(task, here), state)


class Late(Noise, frozen=True, kw_only=True):
    def init(self, task, params, key):
        return super().init(task, params, key).replace(step=jnp.int32(3))


def noise(key, step):
    return jax.random.normal(jax.random.fold_in(key, step), 16)


@pytest.fixture
def with_phase(tables):
    """Return a function that replaces the phases of the small study, whose other programs are shared."""

    def make(phase):
        small = {name: tables()[name] for name in ("data", "probes")}
        return ja.Study(name="own", model=ja.models.OneLayer(dim=16), phases=[phase], seeds=2, **small)

    return make


@pytest.mark.more
def test_steps_of_a_custom_phase_are_counted(go, stop, every_step, assert_same, with_phase, tmp_path):
    made = with_phase(Noise(name="q"))
    go(tmp_path / "whole", made)
    found = ja.load(tmp_path / "whole")
    records = found.records.query("metric == 'evaluations'")
    assert (records["step"] == records["value"]).all()
    stop(tmp_path / "stopped", made, 3, intervals=every_step)
    go(tmp_path / "stopped", made)
    assert_same(tmp_path / "whole", tmp_path / "stopped")

    @jax.jit
    def expected(keys, train):
        key = jax.random.fold_in(keys.batches, 0)  # of the first phase
        start = ja.models.OneLayer(dim=16).init(keys.start, train, dtype="float32").p
        return start + sum(noise(key, step) for step in range(12))

    for seed in range(2):
        keys = jax.tree.map(lambda x: x[0], seed_keys([seed]))
        # Twelve additions in float32, in both.
        np.testing.assert_allclose(
            found.params(seed=seed).p, expected(keys, made.dataset(seed).train), atol=24 * 2**-24 * 12
        )


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            Uncounted,
            "state.step is 0 after 1 steps; set it to 0 in Uncounted.init, and add the number of steps",
        ),
        (Late, "state.step is 3 after 0 steps; set it to 0 in Late.init"),
    ],
)
def test_phases_that_count_wrong_steps_are_rejected(go, with_phase, tmp_path, kind, message):
    with pytest.raises(ja.InputError, match=rf"phases\.q: {message}"):
        go(tmp_path / "out", with_phase(kind(name="q")))


def test_cells_that_differ_only_in_a_float_setting_of_a_flow_share_a_program(tmp_path):
    both = ja.Study(
        name="own",
        data=DATA,
        model=ja.models.OneLayer(dim=16),
        phases=[EMBED, {"kind": euler, "name": "flow", "points": 4}],
        axes={"phases.flow.until_time": [1.0, 10.0]},
        seeds=2,
    )
    assert len(both.plan(tmp_path / "plan", quick=True).groups) == 1


@pytest.mark.more
def test_custom_flow_matches_the_exact_flow(x64):
    train = (
        ja.data.Assumption1(**{k: x for k, x in DATA.items() if k != "kind"}).draw(jax.random.key(2)).train
    )
    model, loss = ja.models.OneLayer(dim=16), ja.losses.Classification()
    task = Task(model, loss, ja.data.Splits(train, ja.data.token_statistics(train)))
    params = ja.dynamics.one_step(
        model.init(jax.random.key(1), train, dtype=jnp.float64), train, step_size=20.0
    )
    path = euler(params, task, points=9, until_time=1e3, substeps=400)
    end = path.params["p"][-1]
    scores = ja.theory.scores.one_layer(params, train)
    exact = ja.dynamics.exact_flow(scores, params.p, until_norm=float(jnp.linalg.norm(end)))
    assert exact.stop == "norm"
    assert path.stop == "time"
    np.testing.assert_allclose(end, exact.p[-1], atol=2e-3 * exact.norm[-1])
    np.testing.assert_allclose(np.log(1e3), exact.log_time[-1], atol=2e-2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.more
def test_custom_flow_is_called_with_float64_arrays_in_every_study(dtype, tmp_path):
    """A cast of each row to the dtype of the parameters must not round a path to float32."""
    seen = {}

    @ja.declare(train=["p"], labels={"size": "size of $p$"})
    def doubling(params, task, *, points: int = 3):
        seen.update(p=params.p.dtype, counts=task.data.train.occurrences.dot(jnp.ones(20))[0].dtype)
        p = jnp.stack([params.p * (1 + k * jnp.asarray(1e-12, params.p.dtype)) for k in range(points)])
        growth = jnp.linalg.norm(p, axis=1) / jnp.linalg.norm(params.p) - 1
        return ja.dynamics.RecordedPath(
            params={"p": p}, metrics={"size": growth}, status=ja.dynamics.Stop.TIME
        )

    both = ja.Study(
        name="own",
        data=DATA,
        model=ja.models.OneLayer(dim=16),
        phases=[EMBED, {"kind": doubling, "name": "flow"}],
        seeds=1,
        dtype=dtype,
    )
    results = both.run(tmp_path / "out", quiet=True)
    assert seen == {"p": jnp.float64, "counts": jnp.float64}
    size = results.records.query("phase == 'flow' and metric == 'size'")["value"]
    np.testing.assert_allclose(size, [0, 1e-12, 2e-12], atol=1e-15)
    assert results.label("size") == "size of $p$"
    assert results.label("time") == "$t$"


@pytest.mark.more
def test_custom_flow_can_take_its_trained_parameters_as_a_setting(tmp_path):
    def still(params, task, *, train: list[str], points: int = 3):
        rows = {
            name: jnp.broadcast_to(x, (points, *x.shape))
            for name in train
            if (x := getattr(params, name)) is not None
        }
        return ja.dynamics.RecordedPath(params=rows, status=ja.dynamics.Stop.STEP_BUDGET, last=1)

    made = study(still, train=["E", "v"])
    assert list(made.cells[0].setting.phases[1].train) == ["E", "v"]
    records = made.run(tmp_path / "out", quiet=True).records
    assert not records.query("phase == 'flow' and metric == 'came_to_end'")["value"].any()


@pytest.mark.more
def test_failure_of_a_custom_flow_is_recorded_as_a_failed_seed(tmp_path):
    @ja.declare(train=["p"])
    def broken(params, task, *, points: int = 4):
        p = jnp.broadcast_to(params.p, (points, *params.p.shape))
        return ja.dynamics.RecordedPath(params={"p": p}, status=ja.dynamics.Stop.FAILED, last=2)

    failures = study(broken, seeds=1).run(tmp_path / "out", quiet=True).failures
    assert failures["step"].tolist() == [2]


def undeclared(params, task, *, points: int = 3):
    """Declare nothing."""


def returning(result, train=("p",), **settings):
    """Build a flow that returns a given result."""

    @ja.declare(train=list(train))
    def flow(params, task, *, points: int = 3):
        return result(params)

    return flow


def rows(x, count=3):
    return jnp.broadcast_to(x, (count, *x.shape))


def of_wrong_type(params):
    """Build a path with parameters of any type, which is possible only without runtime type checks."""
    path = ja.dynamics.RecordedPath(params={}, status=1)
    object.__setattr__(path, "params", params)
    return path


@ja.declare(train=["p"])
def without_points(params, task, *, steps: int = 3):
    """Lack the setting points."""


@ja.declare(train=["p"])
def with_steps(params, task, *, points: int = 3, steps: int = 3):
    """Have a setting with the name of an attribute."""


@ja.declare(trains=["p"])
def misspelt(params, task, *, points: int = 3):
    """Declare an attribute that does not exist."""


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        (
            undeclared,
            r"phases\[1\]: .*undeclared: declares no trained parameters; add the decorator",
        ),
        (
            without_points,
            r"phases\[1\]: .*without_points: has no setting 'points' .*; add `points: int = 64`",
        ),
        (
            with_steps,
            r"phases\[1\]: setting 'steps' of .*with_steps is also an attribute of .*; choose another name",
        ),
        (misspelt, r"phases\[1\]: declare: FlowPhase has no attribute 'trains'; did you mean 'train'"),
        (returning(None, train=["q"]), r"phases\[1\].train: q: not a parameter of the model; known: E, p, v"),
        (returning(lambda params: params.p), r"phases\[1\]: the function returned float64\[16\]; return"),
        (
            returning(lambda x: ja.dynamics.RecordedPath(params={"v": rows(x.v)}, status=1)),
            r"phases\[1\]: the path contains v, but train is p",
        ),
        (
            returning(lambda x: ja.dynamics.RecordedPath(params={"p": rows(x.p, 4)}, status=1)),
            r"phases\[1\]: p in the path has shape \(4, 16\); expected \(3, 16\), one row per point",
        ),
        (
            returning(lambda x: of_wrong_type(rows(x.p))),
            r"phases\[1\]: the path contains float64\[3, 16\] as params; return a dictionary of arrays",
        ),
        (
            returning(lambda x: ja.dynamics.RecordedPath(params={"p": rows(x.p)}, status="time")),
            r"phases\[1\]: the path has status 'time'; return a member of ja.dynamics.Stop",
        ),
        (
            returning(lambda x: ja.dynamics.RecordedPath({"p": rows(x.p)}, 1, {"loss": jnp.zeros(3)})),
            r"probes: 'loss' is also a metric of phase flow; choose another name for it, or declare",
        ),
        (
            returning(lambda x: ja.dynamics.RecordedPath({"p": rows(x.p)}, 1, {"time": jnp.zeros(())})),
            r"phases\[1\]: time in the path has shape \(\); expected \(3,\), one row per point",
        ),
    ],
)
def test_invalid_custom_flows_raise_one_line_errors(flow, message, tmp_path):
    with pytest.raises(ja.InputError, match=message) as raised:
        study(flow).plan(tmp_path / "out", quick=True)
    assert "\n" not in str(raised.value)
