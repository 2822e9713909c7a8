"""The three custom tasks in sweeps/own, compared with manual implementations."""

import itertools
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import minimize

import jaxattn as ja
from jaxattn.lab.engine.monitor import Intervals
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.engine.reported_run import run_with_report
from jaxattn.lab.storage.workplace import Workplace
from jaxattn.lab.study import seed as of_seed

SHIPPED = Path(__file__).parents[1] / "sweeps" / "own"
SMALL = {
    "query": ("data.sequences=5", "data.dim=3", "data.length=3", "data.test_sequences=8", "dtype=float64"),
    "next_token": ("data.sequences=6", "data.test_sequences=4", "data.length=5", "phases.all.steps=3"),
    "contrast": (
        "data.sequences=16",
        "phases.all.batch_size=4",
        "data.test_sequences=4",
        "phases.all.steps=3",
    ),
}
AXES = {
    "query": ("data.strength", 2.0, 4.0),
    "next_token": ("phases.all.step_size", 0.003, 0.01),
    "contrast": ("data.noise", 0.5, 1.0),
}


class KilledError(BaseException):
    """Raised in place of the end of the process."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run a reduced example study once; return the study and its results."""
    folder, known = tmp_path_factory.mktemp("tasks"), {}

    def run(name):
        if name not in known:
            key, low, high = AXES[name]
            study = ja.Study.read(
                SHIPPED / f"{name}.toml", ["seeds=2", *SMALL[name]], [f"{key}=[{low}, {high}]"]
            )
            known[name] = study, study.run(folder / name, quiet=True)
        return known[name]

    return run


@pytest.mark.more
@pytest.mark.parametrize("name", SMALL)
def test_a_killed_run_resumes_bitwise_identically_and_accepts_more_seeds(ran, tmp_path, monkeypatch, name):
    study, finished = ran(name)
    save, killed = Workplace.save, tmp_path / "killed"

    def save_and_die(*arguments, **named):
        save(*arguments, **named)
        raise KilledError

    monkeypatch.setattr(Workplace, "save", save_and_die)
    with pytest.raises(KilledError), Reporter(quiet=True) as reporter:
        run_with_report(study, killed, reporter=reporter, intervals=Intervals(block_s=0.0, checkpoint_s=0.0))
    monkeypatch.undo()
    assert not ja.load(killed).finished
    more = ja.Study.from_tables(study.tree | {"seeds": 3}, study.names).run(killed, quiet=True)
    assert set(more.records["seed"]) == {0, 1, 2}
    key = ["cell", "seed", "phase", "step", "metric"]
    first, old = (
        x.sort_values(key, ignore_index=True) for x in (more.records.query("seed < 2"), finished.records)
    )
    assert first.equals(old)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "contrast" else pytest.mark.more) for name in SMALL]
)
def test_results_can_be_aggregated_compared_and_included_in_a_report(ran, name):
    _, results = ran(name)
    key, low, high = AXES[name]
    assert set(results.aggregate(metrics=["loss"])["n"]) == {2}
    assert (results.pair(key, low, high, metrics=["loss"])["n"] == 2).all()
    assert (results.directory / "report.html").is_file()
    assert results.tokens.empty


def of_metric(results, metric, cell, seed=1):
    rows = results.records.query("metric == @metric and cell == @cell and seed == @seed")
    return rows.set_index("step")["value"]


@pytest.mark.more
def test_flow_on_w_converges_to_the_max_margin_direction_found_by_slsqp(ran):
    study, results = ran("query")
    for cell, seed in itertools.product(range(2), range(2)):
        data, params = results.dataset(seed=seed, cell=cell).train, results.params(cell=cell, seed=seed)
        X, z, W = (np.asarray(x, np.float64) for x in (data.X, data.z, params.W))
        scores = np.einsum("ntd,de,ne->nt", X, W, z)
        top = X[np.arange(len(X)), scores.argmax(axis=1)]
        apart = [
            np.outer(chosen - x, query).ravel()
            for chosen, tokens, query in zip(top, X, z, strict=True)
            for x in tokens
            if not np.array_equal(x, chosen)
        ]
        constraints = {"type": "ineq", "fun": lambda w, A=apart: np.array(A) @ w - 1}
        found = minimize(lambda w: w @ w / 2, W.ravel(), jac=lambda w: w, constraints=constraints)
        assert found.success
        cosine = found.x @ W.ravel() / np.linalg.norm(found.x) / np.linalg.norm(W)
        assert of_metric(results, "feasible", cell, seed).iloc[-1] == 1
        away = of_metric(results, "one_minus_cosine", cell, seed).iloc[-1]
        np.testing.assert_allclose(1 - cosine, away, atol=1e-5)
    assert study.base.model.linear_in == "W"


@pytest.mark.more
def test_causal_attention_with_positional_embeddings_matches_a_loop(ran):
    study, results = ran("next_token")
    data, params = results.dataset(seed=0).train, results.params(seed=0)
    found = study.base.model.outputs(params, data)
    E, P, W, U = (np.asarray(x, np.float64) for x in params)
    for sequence, ids in enumerate(np.asarray(data.ids)):
        x = E[ids] + P
        for t in range(len(ids)):
            a = np.array([x[s] @ W @ x[t] for s in range(t + 1)])
            q = np.exp(a - a.max()) / np.exp(a - a.max()).sum()
            np.testing.assert_allclose(found[sequence, t], (x[t] + q @ x[: t + 1]) @ U, atol=2e-5)


def written_out(study, cell, batch_of):
    """Train seed 1 of a cell by Adam on given batches; return parameters and training data."""
    setting = study.cells[cell].setting
    data_key, key, _ = of_seed.keys(1)
    train = jax.jit(setting.data.draw)(data_key).train
    params = jax.jit(lambda key: setting.model.init(key, train, dtype=jnp.float32))(key)
    adam = optax.adam(setting.phases[0].step_size)
    state, drawn = adam.init(params), jax.random.fold_in(key, 0)

    def loss(params, batch):
        return setting.loss(setting.model.outputs(params, batch), batch.targets).mean()

    @jax.jit
    def adam_step(params, state, batch):
        updates, state = adam.update(jax.grad(loss)(params, batch), state)
        return optax.apply_updates(params, updates), state

    for step in range(3):
        params, state = adam_step(params, state, batch_of(setting, drawn, step, train))
    return jax.jit(loss)(params, train)


@pytest.mark.more
def test_every_step_uses_new_samples(ran):
    study, results = ran("next_token")
    for cell in range(2):

        def fresh(setting, key, step, train):
            task_key = jax.random.fold_in(of_seed.keys(1)[0], 5)
            batch_key, _ = jax.random.split(jax.random.fold_in(key, step))
            settings = {"vocab_size": 8, "length": 5, "sharpness": 2.0, "lag": 1}
            return type(setting.data).function(batch_key, task_key, **settings, sequences=32)

        expected = written_out(study, cell, fresh)
        np.testing.assert_allclose(of_metric(results, "loss", cell)[3], expected, rtol=1e-5)


@pytest.mark.more
def test_a_contrastive_loss_is_computed_only_on_the_minibatch(ran):
    study, results = ran("contrast")
    for cell in range(2):

        def dealt(setting, key, step, train):
            n, size = train.num_examples, setting.phases[0].batch_size
            epoch, number = divmod(step, n // size)
            position = np.asarray(jax.random.permutation(jax.random.fold_in(key, epoch), n))
            own = np.argsort(position)[number * size : (number + 1) * size]
            return train.replace(targets=train.targets[own], left=train.left[own], right=train.right[own])

        expected = written_out(study, cell, dealt)
        np.testing.assert_allclose(of_metric(results, "loss", cell)[3], expected, rtol=1e-5)


def test_example_files_are_self_contained(tmp_path):
    for name in SMALL:
        for file in SHIPPED.glob(f"{name}.*"):
            shutil.copy(file, tmp_path)
        assert ja.Study.read(tmp_path / f"{name}.toml").seeds == tuple(range(5))
