"""Studies of objects: the objects themselves are used, and changing their settings is as in tables."""

import pytest

import jaxattn as ja
from jaxattn.lab.study.setting import hyperparameters

PARTS = ("data", "model", "loss", "phases", "probes", "dtype")


def parts(**changes):
    return {
        "name": "objects",
        "data": ja.data.Assumption1(vocab_size=8, relevant=2, length=4, sequences=8),
        "model": ja.models.MultiHead(dim=4, heads=2),
        "loss": ja.losses.Squared(smoothing=0.1),
        "phases": [
            ja.dynamics.OneStep(name="embed", train=["E"], step_size=0.5),
            ja.dynamics.Descent(
                name="query", train=["p"], optimizer="adamw", step_size=0.1, steps=3, options={"b1": 0.8}
            ),
        ],
        "probes": ja.Probes(per_decade=2, own=(ja.probes.AttentionEntropy(),)),
        **changes,
    }


def test_a_study_uses_the_objects_themselves():
    given = parts()
    (cell,) = ja.Study(**given).cells
    assert cell.setting.data is given["data"]
    assert cell.setting.loss is given["loss"]
    assert all(found is wanted for found, wanted in zip(cell.setting.phases, given["phases"], strict=True))
    assert cell.setting.probes.own[0] is given["probes"].own[0]


GRIDS = [
    {},
    {"axes": {"model.dim": [2, 3], "phases.query.step_size": [0.1, 0.2]}},
    {"axes": {"phases.query.b1": [0.5, 0.8], "probes.bins": [4, 5]}},
    {"axes": {"phases.0.step_size": [1, 2], "data.vocab_size": [8, 12]}},
    {"axes": {"loss": ["logistic", "squared"]}},
    {"axes": {"loss.kind": ["squared"], "loss.smoothing": [0.0, 0.2]}},
    {"zip": {"model.dim": [4, 8], "model.heads": [1, 2]}},
    {"init": {"p": ja.models.starts.Scaled(scale=2.0)}, "axes": {"model.init.p.scale": [1.0, 3.0]}},
    {"blocks": {"a": {"model": {"heads": 1}}, "b": {"model": {"kind": "one_layer"}, "loss": "logistic"}}},
    {"blocks": {"a": {"phases": {"query": {"optimizer": "adam"}}}, "b": {"axes": {"model.dim": [2, 6]}}}},
]


@pytest.mark.parametrize("grid", GRIDS, ids=map(str, range(len(GRIDS))))
def test_changes_of_objects_equal_changes_of_tables(grid):
    """The tables that a study writes give a study with the same cells, by another way through the parser."""
    study = ja.Study(**parts(**grid))
    again = ja.Study.from_tables(study.written)
    assert [cell.tables for cell in again.cells] == [cell.tables for cell in study.cells]
    assert [cell.config_hash for cell in again.cells] == [cell.config_hash for cell in study.cells]
    assert [cell.setting for cell in again.cells] == [cell.setting for cell in study.cells]
    assert again.config == study.config


def test_blocks_hold_objects():
    model = ja.models.OneLayer(dim=3)
    first, second = ja.Study(**parts(blocks={"a": {}, "b": {"model": model}})).cells
    assert first.tables["model"] == {"kind": "multi_head", "dim": 4, "heads": 2}
    assert second.tables["model"] == {"kind": "one_layer", "dim": 3}


def test_an_object_of_another_kind_keeps_the_settings_that_both_have():
    study = ja.Study(**parts(model=ja.models.TwoLayer(dim=5), loss=ja.losses.Squared()))
    changed = ja.Study.from_tables(
        study.tree | {"blocks": {"a": {"model": {"kind": "multi_head", "heads": 1}}}}
    )
    assert changed.cells[0].tables["model"] == {"kind": "multi_head", "dim": 5, "heads": 1}
    swept = ja.Study(
        **parts(model=ja.models.TwoLayer(dim=5), axes={"model.kind": ["two_layer", "one_layer"]})
    )
    assert swept.cells[1].tables["model"] == {"kind": "one_layer", "dim": 5}


def test_swept_objects_share_what_does_not_change():
    study = ja.Study(**parts(axes={"phases.query.step_size": [0.1, 0.2], "model.dim": [2, 3]}))
    assert len({id(cell.setting.data) for cell in study.cells}) == 1
    assert len({id(cell.setting.phases[1]) for cell in study.cells}) == 2
    assert [dict(hyperparameters(cell.setting))["phases", 1, "step_size"] for cell in study.cells] == [
        0.1,
        0.1,
        0.2,
        0.2,
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axes": {"model.dim": [2, "x"]}}, "axes: cell 1 .*model.dim: "),
        ({"axes": {"model.dims": [2]}}, "model: unknown key 'dims'; did you mean 'dim'"),
        ({"axes": {"phases.qery.steps": [2]}}, "phases.qery.steps: unknown entry 'qery'; .*'query'"),
        ({"model": ja.losses.Squared()}, "does not derive from jaxattn.Model"),
        ({"data": ja.models.OneLayer(dim=2)}, "data: one_layer does not derive from"),
    ],
)
def test_invalid_changes_of_objects_are_located(changes, message):
    with pytest.raises(ja.InputError, match=message):
        ja.Study(**parts(**changes))
