import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from jaxattn import losses
from jaxattn.errors import InputError
from jaxattn.study import config, corpora, run, sweepfile
from jaxattn.study.models import model
from jaxattn.study.progress import Reporter

SMALL = tomllib.loads(Path(__file__).with_name("small.toml").read_text())
TRAINED = {
    "one_layer": ["E", "p", "v"],
    "mlp": ["E", "p", "v", "W", "b"],
    "two_layer": ["E", "p"],
    "two_layer_weights": ["E", "p", "v", "W1", "W2"],
}


def descent(train, **changes):
    phase = {"name": "all", "kind": "descent", "train": train, "optimizer": "adam", "step_size": 0.01}
    return phase | {"steps": 6} | changes


def go(directory, **changes):
    wanted = sweepfile.check(SMALL | {"seeds": 2, "dtype": "float64"} | changes)
    with Reporter(quiet=True) as reporter:
        run.run_sweep(wanted, directory, command="test", reporter=reporter)
    records = pd.read_parquet(directory / "records.parquet")
    return wanted, records.pivot_table(index=["seed", "phase", "step"], columns="metric", values="value")


@pytest.mark.parametrize("kind", TRAINED)
def test_a_study_of_a_model_equals_adam_written_out(kind, tmp_path, x64):
    wanted, found = go(tmp_path, model={"kind": kind, "dim": 8}, phases=[descent(TRAINED[kind])])
    functions = model(wanted.model)
    data_keys, model_keys = corpora.seed_keys([1])
    loaded = corpora.load(wanted.data, data_keys, lambda *_: None).corpora
    train = jax.tree.map(lambda x: x[0], loaded.train)
    params = functions.init(model_keys[0], vocab_size=20, dim=8, num_classes=2, dtype=jnp.float64)
    moments = dict.fromkeys(TRAINED[kind], (0.0, 0.0))
    for step in range(1, 7):
        gradient = jax.grad(lambda x: losses.logistic(functions.logits(x, train), train.labels))(params)
        moved = {}
        for name, (first, second) in moments.items():
            g = getattr(gradient, name)
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
            moments[name] = first, second
            root = jnp.sqrt(second / (1 - 0.999**step)) + 1e-8
            moved[name] = getattr(params, name) - 0.01 * first / (1 - 0.9**step) / root
        params = params.replace(**moved)
    expected = losses.logistic(functions.logits(params, train), train.labels)
    np.testing.assert_allclose(found.loc[(1, "all", 6), "loss"], expected, rtol=1e-8)
    assert found.loc[(1, "all", 6), "loss"] < found.loc[(1, "all", 0), "loss"]
    assert ("important_selected" in found) == (kind in ("one_layer", "mlp"))


def test_minibatches_are_drawn_by_seed_and_phase(tmp_path):
    phases = [descent(["p"], name=name, batch_size=10) for name in ("one", "two")]
    _, found = go(tmp_path / "a", phases=phases, dtype="float32")
    _, again = go(tmp_path / "b", phases=phases, dtype="float32")
    pd.testing.assert_frame_equal(found, again)
    _, full = go(tmp_path / "c", phases=[descent(["p"], name="one"), phases[1]], dtype="float32")
    for seed in (0, 1):
        assert found.loc[(seed, "one", 6), "loss"] != full.loc[(seed, "one", 6), "loss"]


def test_a_phase_that_stops_early_ends_with_the_best_validation_loss(tmp_path):
    data = SMALL["data"] | {"validation_sequences": 20, "vocab_size": 60, "max_posterior_difference": 0.3}
    phase = descent(["E", "p", "v"], steps=100, step_size=0.05, check_every=1)
    probes = {"per_decade": 100, "min_count": 1}
    _, straight = go(tmp_path / "a", data=data, phases=[phase], probes=probes)
    _, stopped = go(tmp_path / "b", data=data, phases=[phase | {"patience": 500}], probes=probes)
    for seed in (0, 1):
        # The loss before the first step is not looked at.
        path = straight.loc[(seed, "all")]["validation_loss"].loc[1:]
        end = stopped.loc[(seed, "all", 100), "validation_loss"]
        assert path.min() * (1 - 1e-9) <= end < path.iloc[-1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"phases": [descent(["W1"])]}, "'W1' is not one of E, p, v"),
        ({"model": {"kind": "mlp", "dim": 8}, "phases": [descent(["W1"])]}, "is not one of E, p, v, W, b"),
        ({"phases": [descent(["p"], patience=3)]}, "no validation corpus; give data.validation_sequences"),
        (
            {"model": {"kind": "two_layer", "dim": 8}, "phases": [{"name": "flow", "kind": "exact_flow"}]},
            "follows p of model.kind = 'one_layer' only",
        ),
        (
            {"model": {"kind": "mlp", "dim": 8}, "probes": {"max_margin": True}},
            "only model.kind = 'one_layer' has a max-margin direction",
        ),
        ({"model": {"kind": "two_layers", "dim": 8}}, "did you mean 'two_layer'"),
        ({"seeds": 10**7}, "seeds"),
        ({"seeds": "0:9999999"}, "more than a million"),
    ],
)
def test_what_does_not_go_together_is_named(changes, message):
    with pytest.raises(InputError, match=message):
        sweepfile.check(SMALL | changes)


def test_every_model_of_a_sweep_file_has_functions():
    kinds = {kind.__struct_config__.tag for kind in config.Model.__args__}
    assert kinds == set(TRAINED)
