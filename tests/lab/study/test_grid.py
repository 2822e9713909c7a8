"""Cells: products, zips, quasi-random points, lists, exclusions, blocks."""

import numpy as np
import pytest
from scipy.stats import qmc

import jaxattn as ja
from jaxattn.lab.study import reader, registry
from jaxattn.lab.study.definition import Definition


@pytest.fixture
def settings(tables):
    def make(**grid):
        return [cell.settings for cell in Definition(tables(**grid)).cells]

    return make


def test_grid_is_the_product_of_cells_zip_and_axes(settings):
    got = settings(
        cells=[{"model.dim": 8}, {"model.dim": 16}],
        zip={"phases.embed.step_size": [1.0, 2.0], "phases.query.steps": [10, 20]},
        axes={"data.vocab_size": [30, 40]},
    )
    expected = [
        {"model.dim": d, "phases.embed.step_size": s, "phases.query.steps": k, "data.vocab_size": v}
        for d in (8, 16)
        for s, k in ((1.0, 10), (2.0, 20))
        for v in (30, 40)
    ]
    assert got == expected


def test_quasi_random_points_match_scipy(settings):
    bounds = {
        "phases.embed.step_size": {"low": 1.0, "high": 1000.0, "log": True},
        "model.dim": {"low": 8, "high": 64, "integer": True},
        "phases.query.step_size": {"low": 0.1, "high": 0.3},
    }
    got = settings(halton={"points": 12, "seed": 5, "axes": bounds})
    unit = qmc.Halton(3, scramble=True, rng=5).random(12)
    np.testing.assert_allclose([row["phases.embed.step_size"] for row in got], 10 ** (3 * unit[:, 0]))
    np.testing.assert_allclose([row["phases.query.step_size"] for row in got], 0.1 + 0.2 * unit[:, 2])
    assert [row["model.dim"] for row in got] == np.rint(8 + 56 * unit[:, 1]).astype(int).tolist()
    assert settings(halton={"points": 5, "seed": 5, "axes": bounds}) == got[:5]
    assert settings(halton={"points": 5, "seed": 6, "axes": bounds}) != got[:5]


def test_exclusions_drop_matching_cells(settings, tables):
    axes = {"model.dim": [8, 16, 32], "phases.query.steps": [5, 6]}
    exclude = [{"model.dim": [8, 16], "phases.query.steps": 6}, {"model.dim": 32}]
    assert settings(axes=axes, exclude=exclude) == [
        {"model.dim": 8, "phases.query.steps": 5},
        {"model.dim": 16, "phases.query.steps": 5},
    ]
    assert [cell.number for cell in Definition(tables(axes=axes, exclude=exclude)).cells] == [0, 1]


def test_cells_with_equal_tables_share_objects(tables, monkeypatch):
    made = []
    monkeypatch.setattr(
        reader, "make", lambda *arguments: made.append(arguments[1]) or registry.make(*arguments)
    )
    axes = {"phases.embed.step_size": [1.0, 2.0, 3.0], "phases.query.step_size": [0.1, 0.2, 0.3]}
    cells = Definition(tables(axes=axes)).cells
    # Data, model, loss and two phases of the study without axes; then three and two further phases.
    assert len(made) == 5 + 3 + 2
    assert len({id(cell.setting.data) for cell in cells}) == 1
    assert cells[7].setting.phases[0] is cells[8].setting.phases[0]
    for cell in cells:
        assert [phase.step_size for phase in cell.setting.phases] == list(cell.settings.values())


@pytest.mark.parametrize(
    ("grid", "cells"),
    [
        ({"axes": {f"phases.query.{k}": list(range(1000)) for k in "abcd"}}, "1,000,000,000,000"),
        ({"halton": {"points": 10**6, "axes": {"model.dim": {"low": 1, "high": 9}}}}, "1,000,000"),
        (
            {
                "cells": [{"model.dim": k} for k in range(400)],
                "zip": {"phases.query.steps": list(range(300))},
            },
            "120,000",
        ),
    ],
)
def test_too_large_grids_raise_before_cells_are_created(settings, monkeypatch, grid, cells):
    monkeypatch.setattr("jaxattn.lab.study.grid.itertools", None)
    with pytest.raises(ja.InputError, match=f"axes: {cells} cells, but at most 100,000 are allowed"):
        settings(**grid)


def test_cells_in_all_blocks_count_towards_the_limit(tables, monkeypatch):
    monkeypatch.setattr("jaxattn.lab.study.grid._MAX_CELLS", 5)
    blocks = {name: {"axes": {"model.dim": [1, 2]}} for name in "abc"}
    with pytest.raises(ja.InputError, match=r"blocks.c: the blocks have more than 5 cells in total"):
        Definition(tables(blocks=blocks))


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (
            {"zip": {"model.dim": [1, 2], "seeds": [1]}},
            r"zip: lengths differ \(model.dim has 2, seeds has 1\)",
        ),
        ({"axes": {"model.dim": [1]}, "zip": {"model.dim": [1]}}, "model.dim: swept twice"),
        ({"axes": {"model.dim": [1]}, "exclude": [{"model.d": 1}]}, r"exclude\[0\]: model.d is not swept"),
        ({"axes": {"model.dim": [1]}, "exclude": [{"model.dim": 1}]}, "exclude: all cells are excluded"),
        (
            {"halton": {"points": 3, "axes": {"model.dims": {"low": 1, "high": 2}}}},
            "cell 0 .*unknown key",
        ),
        ({"halton": {"points": 3, "axes": {}}}, r"halton.axes: "),
        (
            {"halton": {"points": 3, "axes": {"model.dim": {"low": 3, "high": 2}}}},
            r"low \(3.0\) must be below",
        ),
        (
            {"halton": {"points": 3, "axes": {"model.dim": {"low": 0, "high": 2, "log": True}}}},
            "low must be positive for a logarithmic axis",
        ),
        ({"axes": {"cells": [1]}}, "cells cannot be swept"),
    ],
)
def test_invalid_grids_raise_errors_with_a_location(settings, grid, message):
    with pytest.raises(ja.InputError, match=message):
        settings(**grid)


PAIRED = {"loss": ["logistic", "squared"]}
SMOOTH = {"loss.smoothing": [0.0, 0.5]}


@pytest.mark.parametrize(
    "grid",
    [
        {"axes": SMOOTH | PAIRED},
        {"axes": PAIRED | SMOOTH},
        {"cells": [{"loss.smoothing": x} for x in (0.0, 0.5)], "zip": PAIRED},
        {"blocks": {name: {"loss": name, "axes": SMOOTH} for name in PAIRED["loss"]}},
        {"axes": PAIRED, "halton": {"points": 2, "axes": {"loss.smoothing": {"low": 0, "high": 0.5}}}},
    ],
)
def test_swept_key_is_in_effect_whatever_the_order_of_its_parent(tables, grid):
    cells = Definition(tables(**grid)).cells
    assert len(cells) == len({cell.config_hash for cell in cells}) == 4
    for cell in cells:
        kind = cell.settings.get("loss", cell.settings.get("block"))
        assert cell.tables["loss"] == {"kind": kind, "smoothing": cell.settings["loss.smoothing"]}


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (
            {"cells": [{"model.dim": 8}, {"model.dim": 4}, {"model.dim": 8}]},
            r"cells 0 \(model.dim = 8\) and 2 \(model.dim = 8\) have the same settings; remove one",
        ),
        (
            {"zip": {"phases.0.step_size": [1.0, 2.0], "phases.embed.step_size": [3.0, 4.0]}},
            "phases.embed.step_size: the same setting as phases.0.step_size; sweep only one of them",
        ),
        (
            {"axes": {"model.dim": [4, 8]}, "blocks": {"a": {}, "b": {"model": {"dim": 16}}}},
            "blocks.b: model.dim: has no effect, because model.dim is swept; remove one of them",
        ),
        (
            {"axes": PAIRED, "blocks": {"b": {"loss": {"smoothing": 0.5}}}},
            "blocks.b: loss.smoothing: has no effect, because loss is swept",
        ),
    ],
)
def test_settings_that_have_no_effect_are_rejected(tables, grid, message):
    with pytest.raises(ja.InputError, match=message):
        Definition(tables(**grid))


def test_cell_has_the_hash_of_the_equivalent_study(tables):
    axes = {"model.dim": [16, 8], "phases.query.optimizer": ["sgd", "adam"]}
    cells = Definition(tables(axes=axes)).cells
    assert cells[0].config_hash == Definition(tables()).config_hash
    written = tables(model={"kind": "one_layer", "dim": 8})
    written["phases"][1]["optimizer"] = "adam"
    assert cells[3].config_hash == Definition(written).config_hash
    assert len({cell.config_hash for cell in cells}) == 4


def test_axes_can_sweep_kinds_and_custom_settings(study):
    cells = study("own", axes={"loss.softness": [0.5, 1.0], "model.rotation": ["drawn", "identity"]}).cells
    assert [cell.setting.model.rotation for cell in cells] == ["drawn", "identity"] * 2
    assert [cell.setting.loss.softness for cell in cells] == [0.5, 0.5, 1.0, 1.0]
    cells = study(axes={"loss.kind": ["logistic", "mine.py:softened"]}).cells
    assert cells[1].tables["loss"] == {"kind": "mine.py:softened", "softness": 1.0}
    with pytest.raises(
        ja.InputError, match=r"cell 0 \(loss.softnes = 1.0\): loss: unknown key 'softnes'; did you"
    ):
        study("own", axes={"loss.softnes": [1.0]})


def test_blocks_are_variants_of_the_sweep_file(tables):
    blocks = {
        "exact": {"axes": {"phases.query.until_norm": [1e2, 1e3]}},
        "Polyak": {
            "phases": {"query": {"kind": "log_descent", "method": "polyak", "step_size": 5.0, "steps": 9}}
        },
    }
    cells = Definition(tables("flow", blocks=blocks, axes={"model.dim": [16, 32]})).cells
    assert [cell.number for cell in cells] == [0, 1, 2, 3, 4, 5]
    assert cells[0].settings == {"block": "exact", "model.dim": 16, "phases.query.until_norm": 1e2}
    assert cells[5].settings == {"block": "Polyak", "model.dim": 32}
    assert cells[5].setting.phases[1].method == "polyak"
    assert cells[5].setting.phases[1].name == "query"
    assert cells[3].setting.phases[1].until_norm == 1e3
    assert Definition(tables("flow")).cells[0].settings == {}


def test_block_with_a_different_kind_keeps_the_common_settings(study):
    blocks = {
        "mlp": {"model": {"kind": "mlp"}},
        "polyak": {"phases": {"query": {"kind": "log_descent", "method": "polyak"}}},
        "own": {"data": {"kind": "mine.py:pairs"}},
    }
    kept = {"dim": 4, "init": {"E": {"kind": "zero"}}}
    mlp, polyak, own = study(model={"kind": "one_layer"} | kept, blocks=blocks).cells
    assert mlp.tables["model"] == {"kind": "mlp", "weights": "normal"} | kept
    assert polyak.tables["phases"][1] == {
        "kind": "log_descent",
        "name": "query",
        "method": "polyak",
        "step_size": 0.1,
        "steps": 20,
    }
    assert own.tables["data"]["vocab_size"] == 20
    assert own.tables["data"]["test_sequences"] == 20
    assert "relevant" not in own.tables["data"]


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"model": {"dimension": 3}}, r"blocks.b: model: unknown key 'dimension'; did you mean 'dim'"),
        (
            {"phases": {"head": {"steps": 3}}},
            r"blocks.b: head: unknown entry 'head'; expected a name, or an index",
        ),
        (
            {"axes": {"model.dims": [3]}},
            r"blocks.b: axes: cell 0 \(block = 'b', model.dims = 3\): model: unk",
        ),
        ({"blocks": {}}, r"blocks.b: blocks cannot differ between blocks"),
        ({"seeds": 3}, r"blocks.b: seeds cannot differ between blocks"),
    ],
)
def test_errors_in_a_block_include_its_name(tables, block, message):
    with pytest.raises(ja.InputError, match=message):
        Definition(tables("flow", blocks={"b": block}))
