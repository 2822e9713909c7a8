"""Window sums and the plateau of their loss."""

import math
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxattn as ja
from jaxattn.lab.study.import_paths import ImportPaths

pytestmark = pytest.mark.more
NAME = "loss_plateau"
FOLDER = Path(__file__).parents[2] / "sweeps" / "neighbours" / NAME


@pytest.fixture
def load():
    return lambda path: ImportPaths(FOLDER).load(path)


@pytest.fixture
def sample(load):
    return lambda **sizes: load("window_sums.py:window_sums")(jax.random.key(0), **sizes)


def outputs_of(x, p=17):
    """Compute y_1 = x_1 and y_i = x_(i-1) + x_i modulo p by a loop."""
    return [x[0], *[(x[i - 1] + x[i]) % p for i in range(1, len(x))]]


def normalised(x):
    return (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)


def test_sequences_are_numbers_a_separator_and_their_window_sums(sample):
    data = sample(sequences=50)
    tokens = np.concatenate([data.ids, data.targets[:, -1:]], axis=1)
    assert_array_equal(tokens[:, 1:], data.targets)
    for row in tokens:
        assert row[:16].min() >= 1
        assert row[:16].max() <= 16
        assert row[16] == 17
        assert_array_equal(row[17:], outputs_of(row[:16]))
    repeated = np.mean(np.diff(sample(sequences=4000).targets[:, 16:], axis=1) == 0)
    assert abs(repeated - 14 / 240) < 0.004


def test_relevant_numbers_are_those_that_change_an_output(sample):
    data = sample(sequences=1, numbers=6)
    x, changes = np.asarray(data.ids[0, :6]), np.zeros((12, 12), bool)
    for j in range(6):
        other = x.copy()
        other[j] = x[j] % 16 + 1
        changes[6:, j] = np.array(outputs_of(other)) != outputs_of(x)
    assert_array_equal(data.relevant, changes)


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_transformer_matches_a_loop(load, sample, scale):
    data, d, n = sample(sequences=2, numbers=4), 4, 4
    model = load("loss_plateau.py:Transformer")(dim=d, attention_scale=scale)
    rng = np.random.default_rng(0)
    shapes = model.init(jax.random.key(1), data, dtype=np.float32)
    params = {name: rng.normal(size=x.shape).astype(np.float32) for name, x in shapes.items()}
    w = {name: x.astype(float) for name, x in params.items()}
    for ids, ours in zip(np.asarray(data.ids), model.outputs(params, data), strict=True):
        x = w["E"][ids] + w["P"]
        y = normalised(x) * w["scale"][0] + w["shift"][0]
        q, k, v = (y @ w[name] + w[f"{name}_bias"] for name in "QKV")
        mixed = np.zeros_like(x)
        for t in range(2 * n):
            for s in range(t + 1):
                factor = scale if t > n and s in (t - n - 1, t - n) else 1
                mixed[t] += factor * (q[t] @ k[s]) / math.sqrt(d) * v[s]
        x = x + mixed @ w["O"] + w["O_bias"]
        z = (normalised(x) * w["scale"][1] + w["shift"][1]) @ w["up"] + w["up_bias"]
        gelu = z / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
        x = x + gelu @ w["down"] + w["down_bias"]
        x = normalised(x) * w["scale"][2] + w["shift"][2]
        assert_allclose(ours, x @ w["head"], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", ["frequencies", "partial", "solution"])
def test_losses_are_cross_entropies_of_predictors_that_know_more_and_more(load, sample, name):
    data = sample(sequences=4000)
    sums = np.array([(a + b) % 17 for a in range(1, 17) for b in range(1, 17)])
    logits = np.full((4000, 32, 18), -50.0)
    logits[:, :15, 1:17] = 0
    logits[:, 15, 17] = 0
    logits[:, 16, 1:17] = 0
    logits[:, 17:, :17] = np.log(np.bincount(sums) / 256)
    known = {"frequencies": 32, "partial": 16, "solution": 16}[name]
    last = 17 if name == "partial" else 32
    exact = np.where(np.arange(18) == np.asarray(data.targets)[..., None], 0, -50.0)
    logits[:, known:last] = exact[:, known:last]
    loss = load("window_sums.py:next_token")(jnp.asarray(logits), data.targets)
    assert_allclose(loss.mean(), load("check.py:losses")()[name], atol=1e-3)


def test_outputs_are_generated_from_generated_outputs(load, sample):
    """A model that adds one to every token generates 1, 2, ... after the separator."""
    successor = SimpleNamespace(outputs=lambda params, data: jax.nn.one_hot((data.ids + 1) % 17, 18))
    made = load("window_sums.py:generate")(SimpleNamespace(model=successor, params=None), sample(sequences=3))
    assert_array_equal(made, [np.arange(1, 17)] * 3)


def test_probe_matches_loops(load, sample):
    data, n = sample(sequences=3, numbers=4), 4
    rng = np.random.default_rng(0)
    states, attention = rng.normal(size=(3, 8, 5)), np.tril(rng.normal(size=(3, 8, 8)))
    zero = SimpleNamespace(
        outputs=lambda params, data: jnp.zeros((3, 8, 18)),
        states=lambda params, data: (jnp.asarray(states), jnp.asarray(attention)),
    )
    context = SimpleNamespace(model=zero, params=None, data=SimpleNamespace(test=data))
    found = load("window_sums.py:Plateau")().measure(context)
    cosines, shares = [], []
    for row in range(3):
        h = states[row, n + 1 :] / np.linalg.norm(states[row, n + 1 :], axis=1, keepdims=True)
        cosines += [h[i] @ h[j] for i in range(n - 1) for j in range(i)]
        pairs = [(n, 0), *[(n + i, j) for i in range(1, n) for j in (i - 1, i)]]
        shares.append(sum(abs(attention[row][pair]) for pair in pairs) / abs(attention[row, n:]).sum())
    assert_allclose(found["cosine"], np.mean(cosines), rtol=1e-5)
    assert_allclose(found["relevant_attention"], np.mean(shares), rtol=1e-5)
    assert found["repetitions"] == 1
    assert found["first_output"] == 0
    assert_allclose(found["other_outputs"], np.mean(data.targets[:, n + 1 :] == 0), rtol=1e-5)


def test_drop_is_halfway_between_the_losses_of_the_partial_and_the_full_solution(load):
    levels = load("check.py:losses")()
    high, low = levels["partial"], levels["solution"]
    loss = [math.log(18), levels["frequencies"], high, high, low, low]
    attention = [0.1, 0.1, 0.1, 0.7, 0.7, 0.7]
    run = pd.DataFrame({"test_loss": loss, "relevant_attention": attention}, index=range(0, 60, 10))
    run[["first_output", "other_outputs"]] = [[0, 0], [0, 0], [1, 0], [1, 0.1], [1, 1], [1, 1]]
    run["repetitions"], run["cosine"] = [0, 0.5, 1, 1, 0, 0], [0, 0.9, 1, 0.9, 0, 0]
    found = load("check.py:one_seed")(run)
    assert_allclose(found["drop"], 35)
    assert_allclose(found["attention_lead"], 10)
    assert found["first_output"] == 1
    assert found["other_outputs"] == 0.05
    assert_allclose(found["repetitions"], 240 / 14)
    assert found["cosine_until_drop"] == 0.7
    never = load("check.py:one_seed")(run.iloc[:4])
    assert never["drop"] == 30


def test_ratio_is_unknown_if_either_block_may_drop_first(load):
    def block(steps, drops):
        return pd.DataFrame({"drop": steps, "drops": drops}, dtype=float)

    longer = block([800, 800, 800, 500, 500], [0, 0, 1, 1, 1])
    shorter = block([400, 900, 900, 600, 400], [1, 1, 1, 0, 0])
    found = load("check.py:compared")("drop", longer, shorter)
    assert_allclose(found, [2, math.nan, 8 / 9, 5 / 6, math.nan])


def test_attention_is_spread_evenly_at_initialisation(run):
    short = ("blocks=null", "figures=null", "seeds=2", "phases.train.steps=2")
    at = run(NAME, *short)
    assert_allclose(at("test_loss", 0), math.log(18), rtol=0.02)
    assert_allclose(at("relevant_attention", 0), 31 / 392, rtol=0.2)
    assert abs(at("cosine", 0)).max() < 0.1


class NextToken(ja.Loss):
    """Mean cross-entropy of the next token."""

    def __call__(self, outputs, targets):
        own = jnp.take_along_axis(outputs, targets[:, :, None], axis=2)[:, :, 0]
        return (jax.nn.logsumexp(outputs, axis=2) - own).mean(axis=1)


def test_a_clamp_of_attention_trains_like_the_model_with_scaled_attention(load, sample):
    """Custom code can scale attention in a phase, without a setting of the model."""
    Transformer, data = load("loss_plateau.py:Transformer"), sample(sequences=8, numbers=6)

    def scaled(attention, data):
        outputs = jnp.arange(attention.shape[1]) > data.numbers
        return attention * jnp.where(data.relevant & outputs[:, None], 10.0, 1.0)

    def train(scale, **clamps):
        model = Transformer(dim=8, attention_scale=scale)
        start = model.init(jax.random.key(1), data, dtype=jnp.float32)
        sgd = ja.dynamics.Descent(name="sgd", train=("*",), optimizer="sgd", step_size=0.1, steps=3, **clamps)
        task = ja.dynamics.Task(model, NextToken(), data)
        return ja.dynamics.run(sgd, task, start).params

    free, written, clamped = train(1.0), train(10.0), train(1.0, clamps={"attention": scaled})
    for name in written:
        assert_allclose(clamped[name], written[name], rtol=1e-5, atol=1e-7)
    assert max(np.abs(free[name] - written[name]).max() for name in free) > 1e-4
