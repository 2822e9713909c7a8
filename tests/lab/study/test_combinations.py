"""Every built-in phase with every part that may be custom."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.lab.study.import_paths import ImportPaths

SWEEPS = Path(__file__).parents[2] / "sweeps"
PHASES = {
    "one_step": {"step_size": 5.0},
    "descent": {"train": ["p"], "optimizer": "sgd", "step_size": 0.5, "steps": 2},
    "log_descent": {"method": "normalized", "step_size": 0.2, "steps": 2},
    "exact_flow": {"until_norm": 3.0, "points": 3},
    "joint_flow": {"until_norm": 3.0, "points": 5},
    "full_flow": {"until_log_loss": -1.0, "points": 3},
}
# The flows of the theory require its model and its loss.
OF_THEORY = ("log_descent", "exact_flow", "joint_flow", "full_flow")
DRAWN = {"kind": "mine.py:pairs", "vocab_size": 10, "sequences": 12, "test_sequences": 4}
ONE_LAYER = {"kind": "one_layer", "dim": 4}
WANDER = {"name": "wander", "kind": "mine.py:Wander", "step_size": 0.1, "steps": 2}
CLIPPED = {
    "name": "clip",
    "kind": "descent",
    "train": ["p"],
    "optimizer": "mine.py:clipped",
    "step_size": 0.1,
    "steps": 2,
    "batch_size": 4,
}
PROBES = ["mine.py:spread", "mine.py:Travelled", "mine.py:Longest"]
THINGS = {
    "data": {"data": DRAWN},
    "data of all seeds": {"data": {"kind": "mine.py:fixed"}},
    "data of a class": {"data": {"kind": "mine.py:Pairs", "vocab_size": 10, "sequences": 12}},
    "model": {"model": {"kind": "mine.py:Turned", "dim": 4}},
    "loss": {"loss": "mine.py:softened"},
    "start": {"model": ONE_LAYER | {"init": {"p": "mine.py:constant"}}},
    "phase": {"before": [WANDER]},
    "optimiser": {"before": [CLIPPED]},
    "probes": {"probes": {"own": PROBES}},
    "figure": {"figures": ["mine.py:last_losses"]},
}
REFUSED = {
    "model": "this phase requires model.kind = 'one_layer'; use kind = 'descent'",
    "loss": "this phase requires the logistic loss without label smoothing; use kind = 'descent'",
}
LINEAR = (
    "this phase requires scores that are linear in 'p' (linear_in), but this model has none; "
    "use kind = 'descent'"
)
PLAIN = {"name": "both", "model": ONE_LAYER, "seeds": 2}
PLAIN["data"] = {"kind": "independent", "vocab_size": 10, "relevant": 4, "length": 3, "sequences": 12}


def study(kind, **changes):
    before = changes.pop("before", [])
    phases = [*before, {"kind": kind, "name": "it", **PHASES[kind]}]
    return ja.Study.from_tables(PLAIN | changes | {"phases": phases}, ImportPaths(SWEEPS))


@pytest.mark.parametrize(
    ("kind", "thing"),
    # The other phases have one or two custom parts.
    [
        pytest.param(
            kind, thing, marks=[] if first % 2 == 0 and (first + second) % 6 == 0 else pytest.mark.more
        )
        for first, kind in enumerate(PHASES)
        for second, thing in enumerate(THINGS)
    ],
)
def test_built_in_phases_can_be_planned_with_custom_components(kind, thing, tmp_path):
    if kind in OF_THEORY and thing in REFUSED:
        with pytest.raises(ja.InputError) as raised:
            study(kind, **THINGS[thing])
        linear = kind == "exact_flow" and thing == "model"
        assert str(raised.value) == f"phases[0]: {LINEAR if linear else REFUSED[thing]}"
        return
    plan = study(kind, **THINGS[thing]).plan(tmp_path / "out", quick=True)
    assert plan.groups["runs"].tolist() == [2]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.more if kind == "exact_flow" else pytest.mark.slow)
        for kind in PHASES
    ],
)
def test_built_in_phases_run_with_custom_components(kind, tmp_path):
    changes = {"before": [WANDER, CLIPPED], "probes": {"own": PROBES}, "figures": ["mine.py:last_losses"]}
    changes |= THINGS["data"] | THINGS["start"]
    if kind not in OF_THEORY:
        changes |= THINGS["loss"] | THINGS["model"]
    found = study(kind, **changes).run(tmp_path / "out", quiet=True)
    assert found.failures.empty
    assert (found.directory / "figures" / "last_losses.svg").is_file()
    last = found.records.query("phase == 'it' and seed == 1").drop_duplicates("metric", keep="last")
    value = last.set_index("metric")["value"]
    p = np.asarray(found.params(seed=1).p, np.float64)
    np.testing.assert_allclose(value["p_norm"], np.linalg.norm(p), rtol=1e-6)
    np.testing.assert_allclose(value["spread"], p.std(), rtol=1e-5)
    moved = p - np.asarray(found.params(seed=1, phase="clip").p)
    np.testing.assert_allclose(value["travelled"], np.linalg.norm(moved), rtol=1e-4, atol=1e-6)
    assert ("longest" in value) == (kind != "one_step")


def test_flows_reject_custom_data_with_three_classes(tmp_path):
    def triples(key, *, sequences: int = 12):
        labels = jnp.arange(sequences) % 3
        return ja.data.from_draws(labels[:, None], labels, vocab_size=3, num_classes=3)

    for flow in (ja.dynamics.JointFlow, ja.dynamics.FullFlow):
        with pytest.raises(ja.InputError, match=r"^phases\[0\]: .*two"):
            ja.Study(name="x", data=triples, model=ja.models.OneLayer(dim=4), phases=[flow(name="it")]).plan(
                tmp_path / "out", quick=True
            )
