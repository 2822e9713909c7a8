"""Judges read records: here records are made by hand, so that every verdict is known beforehand."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from jaxattn.lab.books.rows import Cell, round_up

from jaxattn.lab.books import found, judges
from jaxattn.lab.results.run import Run

HOLDS, FAILS = "holds", "fails"
SEEDS = 40
NORM = np.geomspace(1, 1e6, 30)
BASE = {
    "data.kind": "assumption1",
    "data.vocab_size": 50,
    "data.sequences": 200,
    "data.length": 8,
    "data.num_classes": 2,
    "model.dim": 2048,
    "phases.step.step_size": 200.0,
    "phases.limit.until_norm": 1e6,
}


@pytest.fixture
def cell():
    """Make a cell of given settings whose metrics by (phase, metric) are the same for all seeds."""

    def make(metrics, **settings):
        rows = [
            {"cell": 0, "seed": seed, "phase": phase, "step": step, "metric": metric, "value": value}
            for (phase, metric), values in metrics.items()
            for seed in reversed(range(SEEDS))
            for step, value in enumerate(np.atleast_1d(values))
        ]
        manifest = {"cells": [{"cell": 0, "settings": BASE | settings}]}
        return Cell(Run(Path(), manifest, pd.DataFrame(rows), pd.DataFrame()), 0, SEEDS)

    return make


@pytest.fixture
def limit():
    """What the theory promises of a flow with margin 1/4: t = e^(‖p‖/4), 1 - cos = 8/‖p‖²."""
    found = {
        "p_norm": NORM,
        "one_minus_cosine": 8 / NORM**2,
        "log_time": NORM / 4,
        "log_gradient_norm": np.log(4) - NORM / 4,
        "certified_distance": 8e-12,
        "max_margin": 0.25,
        "feasible": 1.0,
        "duality_gap": 3e-15,
        "primal_residual": 2e-16,
        "relevant_selected": 1.0,
        "only_relevant_selected": 1.0,
    }
    return {("limit", name): x for name, x in found.items()}


def verdicts(rows):
    return [row.verdict for row in rows]


def test_what_the_theory_promises_holds(cell, limit):
    cells = [cell(limit)]
    assert verdicts(judges.unbounded(cells)) == [HOLDS] * 3
    close, power = judges.converges(cells)
    assert (close.verdict, power.verdict) == (HOLDS, HOLDS)
    np.testing.assert_allclose(power.estimate.value, -2, rtol=1e-9)
    assert close.certificate == "1 - cos ≤ 8e-12, gap ≤ 3e-15, primal ≤ 2e-16, 40 of 40 certified"
    assert verdicts(judges.selects(cells)) == [HOLDS]
    assert cells[0].setting == "assumption1, V = 50, n = 200, T = 8, d = 2048, η0 = 200"


def test_a_wrong_direction_fails(cell, limit):
    turned = {"one_minus_cosine": 1e-3 + 8 / NORM**2, "certified_distance": 1e-3}
    limit |= {("limit", name): x for name, x in turned.items()}
    assert verdicts(judges.converges([cell(limit)])) == [FAILS, FAILS]


def test_selection_of_other_tokens_fails(cell, limit):
    limit["limit", "relevant_selected"] = 0.75
    assert verdicts(judges.selects([cell(limit)])) == [FAILS]
    share, held = judges.selects([cell(limit, **{"data.kind": "independent"})], promised=False)
    assert share.verdict == "does not hold"
    assert held.estimate.value == 0.75
    assert "a relevant token, where there is one," in held.measured


def test_growth_tells_infinity_from_a_finite_stationary_point(cell, limit):
    # Near a finite stationary point the gradient vanishes like e^(-λ t), far below 1 / t.
    limit["limit", "log_gradient_norm"] = limit["limit", "log_gradient_norm"] - 10
    assert verdicts(judges.unbounded([cell(limit)]))[:2] == [FAILS, FAILS]


def test_a_flow_that_ends_before_is_told_and_fails(cell, limit):
    short = cell(limit, **{"phases.limit.until_norm": 2e6})
    assert judges.converges([short])[0].verdict == FAILS
    assert short.ends == "40 of 40 end at ‖p‖ = 1000000"
    assert len(judges.unbounded([short])) == 1
    (row,) = judges.direction_elsewhere([short])
    assert row.measured == "1 - cos where the flow ends"
    (row,) = judges.direction_elsewhere([cell(limit)])
    assert (row.estimate.hits, row.verdict) == (SEEDS, "holds there too")


def test_what_is_not_followed_to_its_end_is_in_no_mean_of_rates(cell, limit):
    found = cell(limit)
    records = found.run.records
    first = (records["seed"] == 0) & (records["step"] == len(NORM) - 1)
    records.loc[first & (records["metric"] == "p_norm"), "value"] = 300.0
    records.loc[first & (records["metric"] == "log_gradient_norm"), "value"] = 1e3
    satisfied, rate = judges.unbounded([found])
    assert (satisfied.estimate.hits, rate.estimate.seeds) == (SEEDS - 1, SEEDS - 1)
    assert rate.verdict == HOLDS
    assert rate.measured.endswith("seeds that come to ‖p‖ = 1e6")


def test_a_seed_whose_flow_failed_has_no_value_and_voids_no_row(cell, limit):
    found = cell(limit)
    records, reason = found.run.records, "the flow met NaN or a step too short to represent"
    records.loc[(records["seed"] == 3) & (records["step"] > 20), "value"] = np.nan
    records.loc[(records["seed"] == 3) & records["metric"].isin([*CERTIFICATE, "max_margin"]), "value"] = (
        np.nan
    )
    records.loc[(records["seed"] == 3) & (records["metric"] == "relevant_selected"), "value"] = np.nan
    failure = {"cell": 0, "seed": 3, "phase": "limit", "step": 21, "reason": reason}
    found.run.manifest["failures"] = [failure, failure | {"cell": 1, "reason": "another"}]
    assert found.ends == f"‖p‖ = 1e6 in 39 of 40, 1 of 40 have no end: {reason}"
    rows = [*judges.unbounded([found]), *judges.converges([found]), *judges.selects([found])]
    assert {row.verdict for row in rows} == {HOLDS}
    # The power is fitted to what was followed.
    assert [row.estimate.missing for row in rows if "power" not in row.measured] == [1, 0, 1, 1]
    assert "nan" not in " ".join([*(row.text + row.certificate for row in rows)])
    (_, held) = judges.selects([found], promised=False)
    assert (held.verdict, held.estimate.seeds, held.why) == ("measured", 39, reason)


def test_limits_with_ties_are_reached_or_finite(cell, limit):
    def made(away, holds):
        found = {
            "limit_certified_distance": away,
            "limit_feasible": holds,
            "limit_duality_gap": 1e-13,
            "limit_primal_residual": 1e-14,
            "tied_sequences": 0.25,
        }
        return cell(limit | {("limit", name): x for name, x in found.items()})

    near, finite, far, unproven = made(1e-10, 1.0), made(np.nan, 1.0), made(1e-3, 1.0), made(1e-10, 0.0)
    rows = [judges.with_ties([x]) for x in (near, finite, far, unproven)]
    assert [row[0].estimate.hits for row in rows] == [SEEDS, SEEDS, 0, 0]
    assert rows[0][0].certificate.startswith("1 - cos ≤ 1e-10, gap ≤ 1e-13")
    assert rows[1][0].certificate.startswith("gap")
    assert rows[0][1].estimate.value == 0.25


def test_several_relevant_tokens(cell, limit):
    limit["limit", "only_relevant_selected"] = 0.0
    kind = {"data.kind": "multi_relevant", "data.relevant_per_sequence": 2}
    rows = judges.several([cell(limit, **kind)])
    assert verdicts(rows) == [HOLDS, "does not hold", "holds there too"]
    assert rows[0].claim.setting.startswith("2 relevant tokens per sequence, V = 50")


@pytest.mark.parametrize(("classes", "name"), [(2, "L4.1"), (4, "MC")])
def test_the_power_of_d_in_the_one_step_law(cell, classes, name):
    cells = [
        cell(
            {("step", "one_step_error"): [np.nan, 3 / d**0.5], ("step", "embedding_error"): [np.nan, 2 / d]},
            **{"model.dim": d, "data.num_classes": classes},
        )
        for d in (64, 256, 1024)
    ]
    values, embeddings, constant = judges.one_step_law(cells)
    np.testing.assert_allclose([row.estimate.value for row in (values, embeddings, constant)], [-0.5, -1, 3])
    assert verdicts([values, embeddings, constant]) == [HOLDS, FAILS, "measured"]
    assert {values.claim.name, constant.claim.name} == {name}
    assert values.claim.setting.endswith("d = 64, 256, 1024")


def test_claim_v_is_judged_by_selection_and_direction(cell, limit):
    found = {
        "p_norm": 1e4,
        "relevant_margin": 0.01,
        "relaxed_certified_distance": 3e-7,
        "unrelaxed_one_minus_cosine": 0.04,
        "head_one_minus_cosine": 1e-20,
        "relaxed_support": 0.5,
        "mismatch": 4e-7,
        **{f"relaxed_{name}": x for (_, name), x in limit.items() if name in CERTIFICATE},
    }
    together = {("together", name): x for name, x in found.items()}
    until = {"phases.together.until_norm": 1e4}
    alone = cell(limit | {("limit", "relevant_margin"): 0.2})
    rows = judges.jointly([alone], [cell(together, **until)])
    assert verdicts(rows) == [HOLDS, HOLDS, "does not hold", "measured", "measured", "holds there too"]
    assert [row.estimate.value for row in rows] == [1, 1, 0, 0.04, 0.5, 1]
    assert rows[0].certificate == "‖p‖ = 10000 in 40 of 40"
    assert rows[1].certificate == "1 - cos ≤ 3e-7, gap ≤ 3e-15, primal ≤ 2e-16, 40 of 40 certified"
    assert rows[5].certificate.endswith("4e-7")
    for name, wrong, row in (
        ("relevant_margin", -0.01, 0),
        ("relaxed_certified_distance", 1e-5, 1),
        ("p_norm", 9e3, 1),
        ("head_one_minus_cosine", 1e-3, 5),
    ):
        changed = cell(together | {("together", name): wrong}, **until)
        assert judges.jointly([alone], [changed])[row].estimate.value == 0


CERTIFICATE = ("feasible", "duality_gap", "primal_residual")


def test_growth_on_texts_is_the_derivative_of_the_norm(cell):
    found = {"p_norm": 2.0, "cos_p_descent": 0.5, "log_gradient_norm": np.log(0.02)}
    cells = [cell({("descent", name): x for name, x in found.items()}, **STEPS)]
    norm, growth = judges.grows_on_texts(cells)
    np.testing.assert_allclose([norm.estimate.value, growth.estimate.value], [2.0, 300 * 0.5 * 0.02])
    # A limit that no run reaches is never said to hold.
    assert verdicts([norm, growth]) == ["undecided", "undecided"]


STEPS = {"phases.descent.steps": 1200, "phases.descent.step_size": 0.25}


EQUAL = {"data.kind": "mine.py:equal_counts", "data.relevant": 20}


@pytest.fixture
def window(monkeypatch):
    """The window of these sizes, without integrating it again; docs/findings/which_label.md has its edges."""
    edges = SimpleNamespace(lower=306.05, upper=1334.43)
    monkeypatch.setattr(found, "label_window", lambda **_: edges)


def at(cell, step_size, kept):
    return cell({("limit", "kept"): kept}, **EQUAL, **{"phases.step.step_size": step_size})


@pytest.mark.parametrize(("step_size", "inside"), [(200.0, False), (800.0, True), (2000.0, False)])
def test_a_label_is_lost_inside_of_the_window_and_nowhere_else(cell, window, step_size, inside):
    (lost,), (kept,) = (found.label([at(cell, step_size, x)]) for x in (0.4, 1.0))
    assert (lost.verdict, kept.verdict) == ((HOLDS, FAILS) if inside else (FAILS, HOLDS))
    assert lost.claim.setting == f"equal_counts, V = 50, n = 200, T = 8, d = 2048, η0 = {step_size:g}"
    assert lost.certificate == "predicted: lost from 306 to 1334"


@pytest.mark.more
def test_the_window_is_that_of_the_sizes_of_the_cell(cell):
    (row,) = found.label([at(cell, 800.0, 0.0)])
    assert row.certificate == "predicted: lost from 306 to 1334"


@pytest.mark.parametrize(("keep", "verdict"), [(0, HOLDS), (8, HOLDS), (20, "undecided"), (32, FAILS)])
def test_beside_an_edge_the_median_seed_decides(cell, window, keep, verdict):
    beside = at(cell, 355.0, 0.0)
    records = beside.run.records
    records.loc[records["seed"] < keep, "value"] = 1.0
    (row,) = found.label([beside])
    assert (row.verdict, row.criterion.low, row.estimate.hits) == (verdict, 0.5, SEEDS - keep)


def test_a_window_that_is_not_there_loses_nothing(cell, monkeypatch):
    nothing = SimpleNamespace(lower=np.nan, upper=np.nan)
    monkeypatch.setattr(found, "label_window", lambda **_: nothing)
    (row,) = found.label([at(cell, 800.0, 1.0)])
    assert (row.verdict, row.certificate) == (HOLDS, "predicted: lost nowhere")


COVER = {
    "cover_error": 5e-3,
    "cover_share": 1.0,
    "came_to_end": 1.0,
    "follows_alpha": 1.0,
    "winner": -1.0,
    "variance_sign": -1.0,
    "cover_size": 6.0,
    "shortest_cover": 6.0,
}


@pytest.mark.parametrize(
    ("metric", "value", "expected"),
    [
        ("winner", -1.0, [HOLDS, HOLDS]),
        ("cover_error", 0.011, [FAILS, HOLDS]),
        ("cover_share", 0.99, [FAILS, HOLDS]),
        ("came_to_end", 0.0, [FAILS, HOLDS]),
        ("follows_alpha", 0.9, [HOLDS, FAILS]),
        ("winner", 1.0, [HOLDS, FAILS]),
        ("variance_sign", 0.0, [HOLDS, HOLDS]),
    ],
)
def test_a_cover_has_its_law_and_its_order(cell, metric, value, expected):
    settings = {"data.relevant": 10, "model.init.E.scale": 0.01, "phases.all.until_log_loss": -1e4}
    records = {("all", name): x for name, x in (COVER | {metric: value}).items()}
    rows = found.cover([cell(records, **settings)])
    assert verdicts(rows) == [*expected, "measured"]
    assert rows[2].estimate.hits == SEEDS
    assert rows[0].claim.setting.endswith("R = 10, d = 2048, start × 0.01")
    assert rows[0].measured == "a cover, E·v within 1 % of that at L = e^(-10,000)"


def test_certificates_of_mixtures_are_confirmed_or_not(cell):
    def made(certified, away):
        values = {"certified": certified, "far_error": away, "gap": 3e-16}
        return cell({("both", name): x for name, x in values.items()})

    sure, wrong, lost, none = made(1.0, 2e-8), made(1.0, 2e-5), made(1.0, np.nan), made(0.0, np.nan)
    assert [verdicts(found.mixture([x])) for x in (sure, wrong, lost)] == [
        [HOLDS, HOLDS], [HOLDS, FAILS], [HOLDS, FAILS]
    ]  # fmt: skip
    assert [found.mixture([x])[1].certificate for x in (sure, wrong, lost)] == [
        "1 - cos ≤ 2e-8, 0 go elsewhere, 0 cannot be followed",
        "1 - cos ≤ 2e-5, 40 go elsewhere, 0 cannot be followed",
        "0 go elsewhere, 40 cannot be followed",
    ]  # fmt: skip
    certified, confirmed = found.mixture([none])
    assert (certified.verdict, confirmed.text) == (FAILS, "no value")
    assert confirmed.counted == "0 of 40: in 40 no limit is certified"


def test_bounds_are_rounded_up():
    bounds = [round_up(x) for x in (0.0, 1e-9, 1.01e-9, 9.2e-5, 0.3, 0.31)]
    assert bounds == ["0", "1e-9", "2e-9", "1e-4", "3e-1", "4e-1"]
