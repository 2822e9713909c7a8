# ruff: noqa: E501  messages are kept on one line
"""Data of any kind in a study: incompatible parts raise one line before compilation, other studies run."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.base import silent
from jaxattn.core.errors import InputError
from jaxattn.lab.cli.corpus import describe_data
from jaxattn.lab.engine.plan import recorded_lines
from jaxattn.lab.study.import_paths import ImportPaths
from jaxattn.lab.study.seed import keys

CODE = """
from typing import ClassVar

import jax
import jax.numpy as jnp

import jaxattn as ja
from jaxattn.data import Vectors


def line(key, *, dim: int = 3, sequences: int = 6):
    x = jax.random.normal(key, (sequences, 2, dim))
    return Vectors(targets=x[:, 0].sum(axis=1), X=x)

def signs(key, *, dim: int = 3, sequences: int = 6):
    x = jax.random.normal(key, (sequences, 2, dim))
    return Vectors(targets=jnp.where(x[:, 0, 0] > 0, 1, -1), X=x, classes=2)

def unsized(key, *, dim: int = 3):
    return line(key, dim=dim, sequences=6)

def shared(*, dim: int = 3):
    return line(jax.random.key(0), dim=dim, sequences=6)

def both(*, dim: int = 3):
    return shared(dim=dim), shared(dim=dim)

def uneven(key, *, sequences: int = 6):
    data = line(key, sequences=sequences)
    return data.replace(z=data.X[1:, 0])

class Flat(ja.Dataset):
    x: jax.Array

    def take(self, index):
        return self.replace(x=self.x[index].ravel(), targets=self.targets[index])

def flat(key, *, sequences: int = 6):
    return Flat(targets=jnp.zeros(sequences), x=jax.random.normal(key, (sequences, 2)))

class Linear(ja.Model):
    takes: ClassVar = Vectors

    def init(self, key, like, *, dtype):
        return {"v": jax.random.normal(key, (like.dim,), dtype)}

    def outputs(self, params, data):
        return data.X.mean(axis=1) @ params["v"]

class Wide(Linear):
    def outputs(self, params, data):
        return jnp.zeros((2, 3))

class Online(ja.Phase):
    train: tuple[str, ...] = ("v",)
    steps: int = 3

    def init(self, task, params, key):
        return super().init(task, params, key).replace(key=jax.random.key_data(key))

    def step(self, task, state):
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        batch = task.fresh(key, examples=4)
        _, slopes = ja.dynamics.loss_and_gradients(
            state.params, batch, self.train, task.model.outputs, per_sequence=task.loss
        )
        moved = {"v": state.params["v"] - 0.1 * slopes["v"]}
        return state.replace(params=moved, step=state.step + 1)
"""
DESCENT = {
    "name": "move",
    "kind": "descent",
    "train": ["v"],
    "optimizer": "sgd",
    "step_size": 0.1,
    "steps": 4,
}
STUDY = {
    "name": "any",
    "data": "mine.py:line",
    "model": "mine.py:Linear",
    "loss": "squared_error",
    "phases": [DESCENT],
}
WRONG = {
    "leaves that disagree": (
        {"data": "mine.py:uneven"},
        "data: train: z: float32[5, 3] for 6 targets; expected one row per example",
    ),
    "a take that changes shapes": (
        {"data": "mine.py:flat", "model": "mine.py:Linear"},
        "data: train: take returns float32[4] for x, float32[6, 2], with 2 examples; keep all axes except the first",
    ),
    "targets that a loss does not accept": (
        {"loss": "classification"},
        "loss: Classification is incompatible with the model and the data: it requires targets that are classes, one for each example, not float32[6]",
    ),
    "classes for a loss of numbers": (
        {"data": "mine.py:signs"},
        "loss: SquaredError is incompatible with the model and the data: it requires targets that are numbers of the outputs' shape (6,)",
    ),
    "noise without classes": (
        {"data": {"kind": "mine.py:line", "label_noise": 0.1}},
        "data: label_noise: the targets are not classes; remove this setting",
    ),
    "outputs of another number": (
        {"model": "mine.py:Wide"},
        "model: Wide.outputs returns float32[2, 3]; return (6, ...) floats, for 6 examples",
    ),
    "another kind of data": (
        {"model": {"kind": "one_layer", "dim": 4}},
        "model: requires Corpus, but the data are Vectors; choose another model or other data",
    ),
    "bags for vectors": (
        {"data": {"kind": "independent", "vocab_size": 9, "relevant": 4, "length": 3, "sequences": 8}},
        "model: requires Vectors, but the data are Corpus; choose another model or other data",
    ),
    "fresh batches of a function without a size": (
        {"data": "mine.py:unsized", "phases": [DESCENT | {"fresh": 4}]},
        "phases[0]: fresh: no new batches can be sampled, because the data are read from files or sampled by a",
    ),
    "fresh batches of shared data": (
        {"data": "mine.py:shared", "phases": [DESCENT | {"fresh": 4}]},
        "phases[0]: fresh: no new batches can be sampled",
    ),
    "two kinds of batches": (
        {"phases": [DESCENT | {"fresh": 4, "batch_size": 2}]},
        "phases[0]: fresh: cannot be combined with batch_size; remove one of them",
    ),
    "a margin without scores": (
        {"probes": {"max_margin": True}},
        "probes.max_margin: the model has no scores that are linear in a parameter",
    ),
    "a flow without scores": (
        {"phases": [{"name": "flow", "kind": "exact_flow"}]},
        "phases[0]: this phase requires scores that are linear in 'p' (linear_in), but this model has none; use",
    ),
}


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")
    (folder / "mine.py").write_text(CODE, encoding="utf-8")
    return ImportPaths(folder)


def study(names, **changes):
    return ja.Study.of_tables(json.loads(json.dumps(STUDY | changes)), names)


@pytest.mark.parametrize("case", WRONG)
def test_incompatible_parts_raise_one_line_errors(names, tmp_path, case):
    changes, expected = WRONG[case]
    with pytest.raises(InputError) as raised:
        study(names, **changes).plan(tmp_path / "out", quick=True)
    assert str(raised.value).startswith(expected)
    assert "\n" not in str(raised.value)


def test_models_of_bags_reject_ordered_texts(names):
    data = {"kind": "lines", "path": "a.txt", "order": "kept"}
    with pytest.raises(InputError, match=r"model: requires Corpus, but the data are Sequences"):
        study(names, data=data, model={"kind": "one_layer", "dim": 3}, loss="classification")


def test_plan_explains_why_a_probe_is_skipped(names):
    (line,) = recorded_lines(study(names, probes={"own": ["attention_entropy"]}))
    assert "attention_entropy, attended_tokens (requires a model with attends_to_tokens = True)" in line


def test_plan_lists_metrics_skipped_for_real_targets(names):
    (line,) = recorded_lines(study(names, data={"kind": "mine.py:line", "test_sequences": 3}))
    names_, _, missing = line.removeprefix("move records ").partition("; not ")
    assert set(names_.split(", ")) == {"loss", "test_loss", "log_gradient_norm", "evaluations"}
    assert (
        "test_accuracy_best_on_validation, validation_accuracy (requires targets that are classes)" in missing
    )


@pytest.mark.more
def test_regression_and_classification_on_vectors_run(names, tmp_path):
    """Compared with NumPy: least squares by descent on all examples, on minibatches and on fresh examples."""
    phases = [
        DESCENT,
        DESCENT | {"name": "dealt", "batch_size": 2},
        {"name": "online", "kind": "mine.py:Online"},
    ]
    wanted = study(names, data={"kind": "mine.py:line", "validation_sequences": 4}, phases=phases, seeds=2)
    results = wanted.run(tmp_path / "line", quiet=True)
    data = results.dataset(seed=1)
    A, y = np.asarray(data.train.X.mean(axis=1)), np.asarray(data.train.targets)
    v = np.asarray(wanted.base.model.init(keys(1)[1], data.train, dtype=jnp.float32)["v"])
    for _ in range(4):
        v = v - 0.1 * A.T @ (A @ v - y) / len(y)
    np.testing.assert_allclose(results.params(seed=1, phase="move")["v"], v, rtol=1e-4, atol=1e-6)
    values = results.records.query("seed == 1 and metric == 'validation_loss' and phase == 'move'")["value"]
    held = data.validation
    expected = ((np.asarray(held.X.mean(axis=1)) @ v - np.asarray(held.targets)) ** 2).mean() / 2
    np.testing.assert_allclose(values.iloc[-1], expected, rtol=1e-4)
    assert set(results.records["phase"]) == {"move", "dealt", "online"}
    assert results.failures.empty


def test_shared_data_of_any_type_run(names, tmp_path):
    results = study(names, data="mine.py:both", seeds=2).run(tmp_path / "shared", quiet=True)
    last = results.records.query("step == 4").set_index(["seed", "metric"])["value"]
    np.testing.assert_array_equal(last[0, "test_loss"], last[0, "loss"])
    assert last[0, "loss"] != last[1, "loss"]


def test_any_data_can_be_described(names):
    data = {"kind": "mine.py:signs", "sequences": 8, "test_sequences": 4}
    ((_, sizes),) = describe_data(study(names, data=data, loss="classification"), 3, silent)
    assert sizes["examples"].tolist() == ["8", "4"]
    assert sizes["X"].tolist() == ["float32 (8, 2, 3)", "float32 (4, 2, 3)"]
    assert {"label -1", "label 1"} <= set(sizes.columns)


def test_integer_targets_without_num_classes_are_named():
    class Integers(ja.Dataset):
        X: jax.Array

    def integers(key, *, sequences: int = 6):
        return Integers(targets=jnp.arange(6) % 2, X=jax.random.normal(key, (6, 3)))

    reason = ja.losses.Classification().skip_reason(jnp.zeros(6), integers(jax.random.key(0)))
    words = "its targets are integers, but Integers has no num_classes"
    assert reason == f"{words}; set it in Integers: num_classes = 2"
