# ruff: noqa: E501  messages and snippets stay as they are printed
"""Studies made of custom code only: the example in sweeps/own, notebooks and single files."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import jaxattn as ja
from jaxattn.lab.study.import_paths import ImportPaths

SHIPPED = Path(__file__).parents[1] / "sweeps" / "own"
# Saves a checkpoint as early as possible, and is killed right after it.
KILLED = """
import os, signal, sys
from pathlib import Path
from jaxattn.lab.api import Study
from jaxattn.lab.engine.reported_run import run_with_report
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.engine.monitor import Intervals
from jaxattn.lab.storage.workplace import Workplace

save = Workplace.save
def save_and_die(*arguments, **named):
    save(*arguments, **named)
    os.kill(os.getpid(), signal.SIGKILL)

Workplace.save = save_and_die
with Reporter(quiet=True) as reporter:
    saving = Intervals(block_s=0.0, checkpoint_s=0.0)
    run_with_report(Study.read(sys.argv[1]), Path(sys.argv[2]), reporter=reporter, intervals=saving)
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A copy of the example files, with a finished run."""
    folder = tmp_path_factory.mktemp("own")
    for name in ("lab.py", "study.toml", "clipped.toml"):
        shutil.copy(SHIPPED / name, folder)
    ja.Study.read(folder / "study.toml").run(folder / "finished", quiet=True)
    return folder


@pytest.fixture
def copied(own, tmp_path):
    """Return a copy of the code, the sweep file and the results."""
    shutil.copytree(own, tmp_path / "own")
    return tmp_path / "own"


def test_custom_study_uses_only_custom_classes():
    study = ja.Study.read(SHIPPED / "study.toml")
    names = ("SignDescent", "Temperature", "attended", "needle", "of_norm", "polynomial", "tokens_attended")
    assert study.custom_kinds == [f"lab.py:{name}" for name in names]
    assert (len(study.cells), len(study.seeds)) == (2, 10)


@pytest.mark.more
def test_cells_that_differ_in_a_custom_float_share_a_compiled_program(own, tmp_path):
    study = ja.Study.read(own / "study.toml")
    for folder, left, done in ((own / "finished", 0, 10), (tmp_path / "none", 20, 0)):
        plan = study.plan(folder, quick=True)
        assert plan.groups["vmapped"].tolist() == ["seed, loss.power"]
        assert plan.groups["runs"].tolist() == [left]
        assert plan.cells["done"].tolist() == [f"{done} of 10"] * 2


@pytest.mark.more
def test_results_match_a_manual_implementation_for_one_seed(own):
    """Train one seed with attention over rows of E and automatic differentiation."""
    lab = sys.modules[ImportPaths(own).load("lab.py:needle").__module__]
    seed, power = 3, 4.0
    data_key, model_key = jax.random.split(jax.random.fold_in(jax.random.key(0), seed))
    sizes = {"vocab_size": 40, "length": 8, "sequences": 300}
    train = lab.needle(jax.random.split(data_key)[0], **sizes, shown=0.9)
    ids, mask = ja.models.reference.padded_sequences(train)
    plain = ja.models.one_layer.init(model_key, vocab_size=40, dim=64)
    params = {"E": plain.E, "p": 0.5 * plain.p / jnp.linalg.norm(plain.p), "log_temperature": jnp.zeros(())}

    def attention(x):
        scores = (x["E"] @ x["p"])[ids] / jnp.exp(x["log_temperature"])
        return jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=1)

    def loss(x):
        margin = train.targets * (attention(x) * (x["E"] @ plain.v)[ids]).sum(axis=1)
        return jnp.where(margin < 0, 1 - power * margin, (1 + jnp.abs(margin)) ** -power).mean()

    params["E"] = params["E"] - 50.0 * jax.grad(loss)(params)["E"]
    slopes = jax.jit(jax.grad(loss))
    records = ja.load(own / "finished").records
    chosen = records.query("cell == 1 and seed == @seed and phase == 'query'")
    last = max(step for step in chosen["step"] if step <= 20)
    for step in range(last):
        size = 0.03 / np.sqrt(step + 1)
        slope = slopes(params)
        params |= {name: params[name] - size * jnp.sign(slope[name]) for name in ("p", "log_temperature")}
    q = attention(params)
    expected = {
        "loss": loss(params),
        "p_norm": jnp.linalg.norm(params["p"]),
        "tokens_attended": (1 / (q**2).sum(axis=1)).mean(),
        "tokens_attended_3": ((q**3).sum(axis=1) ** -0.5).mean(),
    }
    found = chosen[chosen["step"] == last].set_index("metric")["value"]
    assert last > 10
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-3, err_msg=name)


@pytest.mark.more
def test_a_killed_run_resumes_bitwise_identically(own, call, tmp_path):
    environment = os.environ | {
        "JAX_NUM_CPU_DEVICES": str(jax.local_device_count()),
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    words = [sys.executable, "-c", KILLED, own / "study.toml", tmp_path / "killed"]
    done = subprocess.run(words, env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    status, out, _ = call("status", tmp_path / "killed")
    assert status == 0
    assert "stopped" in out
    before = ja.load(tmp_path / "killed")
    assert not before.finished
    assert before.manifest["wall_time_s"] > 0
    (log,) = (tmp_path / "killed" / "runs").glob("*.partial-*/metrics.jsonl")
    lines = log.read_text(encoding="utf-8").splitlines()
    assert call("run", own / "study.toml", "--out", tmp_path / "killed", "--quiet")[0] == 0
    # The recorded time includes that of the killed process, and the log continues its log.
    after = ja.load(tmp_path / "killed")
    assert after.manifest["wall_time_s"] > before.manifest["wall_time_s"]
    (batch,) = after.manifest["batches"]
    log = tmp_path / "killed" / "runs" / batch / "metrics.jsonl"
    more = log.read_text(encoding="utf-8").splitlines()
    assert more[: len(lines)] == lines
    assert len(more) > len(lines)
    for table in ("records", "tokens"):
        got, wanted = (getattr(ja.load(path), table) for path in (tmp_path / "killed", own / "finished"))
        assert got.equals(wanted)
    assert len(before.records) < len(ja.load(own / "finished").records)


@pytest.mark.more
def test_adding_seeds_does_not_change_existing_seeds(copied, call):
    before = ja.load(copied / "finished")
    words = ("run", copied / "study.toml", "--seeds", "0:20", "--out", copied / "finished", "--quiet")
    assert call(*words)[0] == 0
    after = ja.load(copied / "finished")
    assert after.manifest["seeds"] == list(range(20))
    key = ["cell", "seed", "phase", "step", "metric"]
    first, old = (
        x.sort_values(key, ignore_index=True) for x in (after.records.query("seed < 10"), before.records)
    )
    assert first.equals(old)
    assert set(after.records.groupby(["cell", "phase", "step", "metric"])["seed"].nunique()) == {20}
    # Compare two cells by seed, on the command line and in Python.
    words = ("aggregate", copied / "finished", "--pair", "loss.power=1.0,4.0", "--metrics", "tokens_attended")
    status, out, _ = call(*words)
    assert status == 0
    assert "tokens_attended" in out
    table = after.pair("loss.power", 1.0, 4.0, metrics=["tokens_attended"], phases=["query"])
    assert (table["n"] == 20).all()
    assert table["mean_low"].iloc[-1] > 0


@pytest.mark.more
def test_a_custom_optimiser_limits_its_step_length(own, tmp_path):
    """The gradient exceeds the limit, so one step has the length of the limit times the step size."""
    overrides = ["phases.query.steps=1", "phases.query.step_size=1e3", "seeds=2"]
    study = ja.Study.read(own / "clipped.toml", overrides, ["phases.query.limit=[1e-5, 1e-4]"])
    assert "lab.py:clipped" in study.custom_kinds
    results = study.run(tmp_path / "clipped", quiet=True)
    for cell in results.cells.itertuples(index=False):
        before, after = (results.params(cell=cell[0], seed=1, phase=name) for name in ("embed", "query"))
        moved = [np.ravel(getattr(after, name) - getattr(before, name)) for name in ("p", "log_temperature")]
        limit = results.settings(cell[0])["phases.query.limit"]
        np.testing.assert_allclose(np.linalg.norm(np.concatenate(moved)), 1e3 * limit, rtol=1e-3)


@pytest.mark.more
def test_custom_figure_stays_in_the_report_after_redrawing(own, call):
    assert (own / "finished" / "figures" / "attended.svg").is_file()
    page = (own / "finished" / "report.html").read_text(encoding="utf-8")
    assert "Effective number of attended tokens, mean over seeds with 95 % intervals." in page.replace(
        "\u00a0", " "
    )
    drawn = ja.load(own / "finished").figure(ImportPaths(own).load("lab.py:attended"), phase="embed")
    assert drawn.title == "Attended"
    assert call("report", own / "finished")[0] == 0
    again = (own / "finished" / "report.html").read_text(encoding="utf-8")
    assert "Attended" in again
    assert "reading results never executes code from a folder" in again


@pytest.mark.more
def test_trained_parameters_have_the_type_of_the_custom_model(own):
    study = ja.Study.read(own / "study.toml")
    params = study.run(own / "finished", quiet=True).params(cell=1, seed=3, phase="query")
    assert type(params).__name__ == "Params"
    assert params.E.shape == (40, 64)
    assert params.log_temperature != 0


@pytest.mark.more
def test_runs_of_changed_code_are_computed_again_unless_they_are_reused(copied, call):
    before = ja.load(copied / "finished")
    with (copied / "lab.py").open("a", encoding="utf-8") as file:
        file.write("\nCHANGED = True\n")
    words = ("run", copied / "study.toml", "--out", copied / "finished")
    status, out, error = call(*words, "--reuse-code")
    assert status == 0
    assert "already finished, nothing to run" in error
    assert "computed by older code: cell 0: seeds 0 to 9; cell 1: seeds 0 to 9" in " ".join(out.split())
    reused = ja.load(copied / "finished")
    assert reused.records.equals(before.records)
    assert reused.table()["older_code"].all()
    status, out, error = call(*words)
    assert status == 0
    assert "20 runs computed again, because lab.py:" in error
    assert "older code" not in out
    # Nothing that matters has changed, and the earlier runs are kept.
    again = ja.load(copied / "finished")
    assert again.records.equals(before.records)
    assert not set(again.manifest["batches"]) & set(before.manifest["batches"])
    assert set(before.manifest["batches"]) < {path.name for path in (copied / "finished" / "runs").iterdir()}


@struct.dataclass
class Params:
    E: jax.Array
    p: jax.Array
    v: jax.Array
    log_temperature: jax.Array


class Temperature(ja.Model):
    """A custom class of a notebook."""

    dim: int

    def init(self, key, like, *, dtype):
        plain = ja.models.OneLayer(dim=self.dim).init(key, like, dtype=dtype)
        return Params(plain.E, plain.p, plain.v, jnp.zeros((), dtype))

    def outputs(self, params, corpus):
        scores = params.E @ params.p / jnp.exp(params.log_temperature)
        return ja.attention.attend(corpus, scores, params.E @ params.v)


def attention_entropy(params, corpus):
    """Return the mean of -Σ_i q_i log q_i over sequences."""
    scores = params.E @ params.p / jnp.exp(params.log_temperature)
    weights = jnp.exp(scores - scores.max())
    normaliser = corpus.lengths / ja.attention.attend(corpus, scores, 1 / weights)
    return (jnp.log(normaliser) - ja.attention.attend(corpus, scores, jnp.log(weights))).mean()


@pytest.mark.more
def test_a_study_runs_in_a_notebook(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = ja.Study(
        name="temperature", seeds=10,
        data=ja.data.Independent(vocab_size=50, relevant=20, length=8, sequences=200),
        model=Temperature(dim=64),
        phases=[ja.dynamics.OneStep(name="embed", step_size=50.0),
                ja.dynamics.Descent(name="query", train=["p", "log_temperature"], optimizer="adam", step_size=1e-2, steps=200)],
        probes=ja.Probes(own=[attention_entropy]),
        axes={"model.dim": [64, 256]},
    )  # fmt: skip
    results = study.run("results/temperature")
    same = ja.load("results/temperature")
    assert same.records.equals(results.records)
    assert set(same.records["seed"]) == set(range(10))
    entropy = same.aggregate(metrics=["attention_entropy"], phases=["query"])
    assert entropy["mean"].iloc[0] == pytest.approx(np.log(8), abs=0.02)
    assert entropy.groupby("cell")["mean"].last().max() < 0.5
    assert same.params(cell=0, seed=3)["log_temperature"] < -0.5
    assert isinstance(results.params(cell=1, seed=3), Params)
    with pytest.raises(ja.InputError, match="cannot be imported by a sweep file"):
        ja.Study(**NOTEBOOK).write(tmp_path / "x.toml")


class Local:
    """A class that cannot be imported from a file."""

    def make():
        class Inner(Temperature):
            pass

        return Inner(dim=4)


NOTEBOOK = {
    "name": "x",
    "data": ja.data.Independent(vocab_size=50, relevant=20, length=8, sequences=200),
    "model": Local.make(),
    "phases": [ja.dynamics.OneStep(name="embed", step_size=50.0)],
}
FILE = """
name = "mine"
seeds = 2
loss = "mine.py:exponential"              # (logits, labels) -> (n,); or { kind = "logistic", smoothing = 0.1 }

[data]
kind = "mine.py:needle"                   # def needle(key, *, vocab_size: int, length: int, sequences: int) -> Corpus
vocab_size = 40
length = 8
sequences = 300

[model]
kind = "one_layer"
dim = 64
init = { p = "zero", E = { scale = 0.1 } }

[probes]
own = ["mine.py:p4", { kind = "mine.py:p4", name = "p3", power = 3.0 }]      # def p4(params, corpus, *, power: float = 4.0)

[[phases]]
name = "query"
kind = "descent"
train = ["E", "p"]
optimizer = "sgd"
step_size = 1.0
steps = 4
"""
MINE = """
import jax
import jax.numpy as jnp
from jaxattn.data import Corpus, from_draws

def exponential(logits, labels):
    return jnp.exp(-labels * logits)

def needle(key, *, vocab_size: int, length: int, sequences: int) -> Corpus:
    label_key, token_key = jax.random.split(key)
    label = jax.random.bernoulli(label_key, 0.5, (sequences,)).astype(jnp.int32)
    tokens = jax.random.randint(token_key, (sequences, length), 2, vocab_size).at[:, 0].set(label)
    return from_draws(tokens, 2 * label - 1, vocab_size=vocab_size, num_classes=2)

def p4(params, corpus, *, power: float = 4.0):
    return (jnp.abs(params.p) ** power).sum()
"""


@pytest.mark.more
def test_sweep_file_can_use_functions_from_a_file_in_its_folder(tmp_path):
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    (tmp_path / "mine.toml").write_text(FILE, encoding="utf-8")
    results = ja.Study.read(tmp_path / "mine.toml").run(tmp_path / "out", quiet=True)
    last = results.records.query("step == 4").pivot(index="seed", columns="metric", values="value")
    for seed in (0, 1):
        p = results.params(seed=seed).p
        np.testing.assert_allclose(last["p4"][seed], (p**4).sum(), rtol=1e-5)
        np.testing.assert_allclose(last["p3"][seed], (jnp.abs(p) ** 3).sum(), rtol=1e-5)
    first = results.records.query("step == 0").pivot(index="seed", columns="metric", values="value")
    assert (first["p_norm"] == 0).all()
    # E v has a tenth of its size, and p = 0 averages it over eight tokens, so the loss is about e^0.
    np.testing.assert_allclose(first["loss"], 1, atol=0.02)


def test_import_paths_can_be_swept_and_helper_modules_are_found(tmp_path):
    (tmp_path / "helper.py").write_text("SCALE = 2.0\n", encoding="utf-8")
    code = "from helper import SCALE\n" + MINE.replace("power: float = 4.0", "power: float = SCALE")
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    (tmp_path / "mine.toml").write_text(FILE, encoding="utf-8")
    study = ja.Study.read(tmp_path / "mine.toml", axes=["probes.own.0.power=[1.0, 2.0]"])
    assert study.base.probes.own[0].power == 2.0
    plan = study.plan(tmp_path / "out", quick=True)
    assert plan.groups["vmapped"].tolist() == ["seed, probes.own.0.power"]


def norm(params, corpus, *, power: float = 2.0):
    return (jnp.abs(params.p) ** power).sum()


SMALL = {
    "name": "small",
    "data": ja.data.Independent(vocab_size=20, relevant=6, length=5, sequences=40),
    "model": ja.models.OneLayer(dim=4),
    "phases": [ja.dynamics.OneStep(name="embed", step_size=1.0)],
}


@pytest.mark.parametrize(
    ("changes", "vmapped"),
    [
        ({"probes": [norm], "axes": {"probes.own.0.power": [1.0, 2.0]}}, ["seed, probes.own.0.power"]),
        (
            {"probes": {"own": [{"kind": norm, "name": "n"}]}, "axes": {"probes.own.n.power": np.ones(1)}},
            ["seed"],
        ),
        ({"axes": {"loss": ["logistic", lambda logits, labels: -labels * logits]}}, ["seed", "seed"]),
        ({"axes": {"model.dim": 2 ** np.arange(2, 4)}, "seeds": range(3, 6)}, ["seed", "seed"]),
    ],
)
def test_python_api_accepts_functions_and_arrays_in_place_of_names_and_lists(tmp_path, changes, vmapped):
    assert ja.Study(**SMALL | changes).plan(tmp_path, quick=True).groups["vmapped"].tolist() == vmapped


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"probes": norm}, "probes: expected a Probes object or a list, got <function norm"),
        ({"probes": ja.Probes(own=norm)}, "probes.own: expected a list, got <function norm"),
        (
            {"probes": [lambda params, corpus: 1.0, lambda params, corpus: 2.0]},
            "tests.test_own:<lambda>: two objects",
        ),
        (
            {"model": norm},
            "argument 'params' is not keyword-only; a model function takes only settings, after",
        ),
    ],
)
def test_invalid_python_arguments_raise_one_line_errors(changes, message):
    with pytest.raises(ja.InputError) as raised:
        ja.Study(**SMALL | changes)
    assert message.removeprefix("tests.test_own") in str(raised.value)
