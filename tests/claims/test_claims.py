"""Checks of the claims on synthetic records with known verdicts."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.lab.books import Cell, around, cells, read_book
from jaxattn.lab.results.run import Run
from jaxattn.lab.study.import_paths import ImportPaths

HOLDS, FAILS, UNKNOWN = "agrees", "differs", "inconclusive"
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
CERTIFICATE = ("feasible", "duality_gap", "primal_residual")
CLAIMS = read_book("claims")


def part(item, name, *arguments):
    """Return a function that applies a part of an item's check to runs."""
    load = ImportPaths(CLAIMS.item(item).folder).load

    def apply(*runs):
        return list(load(f"check.py:{name}")(*runs, *arguments))

    return apply


def one_step(run):
    """Apply the check of the one-step law."""
    law = ImportPaths(CLAIMS.folder).load("one_step.py:one_step_law")
    return list(law(run, "law", expected=around(-0.5, 0.05)))


def whole(item, *names):
    """Return a function that applies the check of an item to runs."""

    def apply(*runs):
        return CLAIMS.item(item).measure(dict(zip(names, runs, strict=True)))[0]

    return apply


GROWS, GROWS_ON_TEXTS = part("L4.2", "unbounded", "base"), part("L4.2", "grows_on_texts")
CONVERGES, TIES = part("T4.3", "converges"), part("T4.3", "with_ties", "ties")
ELSEWHERE = part("T4.3", "direction_elsewhere", "beyond")
TOGETHER, SEVERAL, LABEL = whole("V", "base", "joint"), whole("MR", "several"), whole("label", "study")
COVER, MIXTURE = whole("cover", "claim"), whole("mixture", "claim")


def SELECTS(run):
    """Apply the check of the selection in the setting of the lemmas."""
    selects = ImportPaths(CLAIMS.item("L4.4-4.5").folder).load("check.py:selects")
    return list(selects(run, "base", basis="theory"))


def SELECTS_WITHOUT(run):
    """Apply the check of the selection beyond the lemmas."""
    selects = ImportPaths(CLAIMS.item("L4.4-4.5").folder).load("check.py:selects")
    return list(selects(run, "beyond", basis="beyond"))


def judged(check, *runs):
    """Apply a check, or a part of one, to runs."""
    return check(*runs)


def verdicts(found):
    return [finding.verdict for finding in found]


@pytest.fixture
def made():
    """Build a run of one cell with these settings; metrics by (phase, metric) are the same for all seeds."""

    def make(metrics, **settings):
        rows = [
            {"cell": 0, "seed": seed, "phase": phase, "step": step, "metric": metric, "value": value}
            for (phase, metric), values in metrics.items()
            for seed in reversed(range(SEEDS))
            for step, value in enumerate(np.atleast_1d(values))
        ]
        manifest = {"cells": [{"cell": 0, "settings": BASE | settings}]}
        return Run(Path(), manifest, pd.DataFrame(rows), pd.DataFrame())

    return make


def joined(*runs):
    """Combine the cells of several runs."""
    entries = [run.manifest["cells"][0] | {"cell": cell} for cell, run in enumerate(runs)]
    records = pd.concat([run.records.assign(cell=cell) for cell, run in enumerate(runs)], ignore_index=True)
    return Run(Path(), {"cells": entries}, records, pd.DataFrame())


@pytest.fixture
def limit():
    """Return the promised flow for margin 1/4: t = e^(‖p‖/4), 1 - cos = 8/‖p‖²."""
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


def test_claim_holds_if_p_converges_to_the_predicted_direction(made, limit):
    run = made(limit)
    assert verdicts(judged(GROWS, run)) == [HOLDS] * 3
    close, power = judged(CONVERGES, run)
    assert (close.verdict, power.verdict) == (HOLDS, HOLDS)
    np.testing.assert_allclose(power.estimate.value, -2, rtol=1e-9)
    assert close.certificate == "1 - cos ≤ 8e-12, gap ≤ 3e-15, primal ≤ 2e-16, 40 of 40 certified"
    (selected,) = judged(SELECTS, run)
    assert (selected.verdict, selected.basis) == (HOLDS, "theory")
    (cell,) = cells(run)
    assert cell.setting == selected.setting == "assumption1, V = 50, n = 200, T = 8, d = 2048, η0 = 200"


def test_claim_fails_if_p_converges_to_another_direction(made, limit):
    turned = {"one_minus_cosine": 1e-3 + 8 / NORM**2, "certified_distance": 1e-3}
    limit |= {("limit", name): x for name, x in turned.items()}
    assert verdicts(judged(CONVERGES, made(limit))) == [FAILS, FAILS]


def test_claim_fails_if_other_tokens_are_selected(made, limit):
    limit["limit", "relevant_selected"] = 0.75
    assert verdicts(judged(SELECTS, made(limit))) == [FAILS]
    share, held = judged(SELECTS_WITHOUT, made(limit, **{"data.kind": "independent"}))
    assert share.verdict == FAILS
    assert (held.verdict, held.estimate.value) == ("", 0.75)
    assert "a relevant token, of those that have one" in held.text


def test_growth_distinguishes_divergence_from_a_finite_stationary_point(made, limit):
    # Near a finite stationary point the gradient vanishes like e^(-λ t), far below 1 / t.
    limit["limit", "log_gradient_norm"] = limit["limit", "log_gradient_norm"] - 10
    assert verdicts(judged(GROWS, made(limit)))[:2] == [FAILS, FAILS]


def test_claim_fails_and_reports_the_norm_if_the_flow_ends_early(made, limit):
    short = made(limit, **{"phases.limit.until_norm": 2e6})
    assert judged(CONVERGES, short)[0].verdict == FAILS
    assert cells(short)[0].ends == "40 of 40 end at ‖p‖ = 1000000"
    # Rates at the end of the flow are not measured, and their criteria are optional.
    (found,) = judged(GROWS, short)
    assert found.id == "base.grows"
    (found,) = judged(ELSEWHERE, short)
    assert (found.text, found.verdict) == ("1 - cos where the flow ends", "")
    (found,) = judged(ELSEWHERE, made(limit))
    assert (found.counts[0], found.verdict) == (SEEDS, HOLDS)


def test_rates_exclude_seeds_whose_flow_ends_early(made, limit):
    run = made(limit)
    records = run.records
    first = (records["seed"] == 0) & (records["step"] == len(NORM) - 1)
    records.loc[first & (records["metric"] == "p_norm"), "value"] = 300.0
    records.loc[first & (records["metric"] == "log_gradient_norm"), "value"] = 1e3
    satisfied, rate = judged(GROWS, run)
    assert (satisfied.estimate.hits, rate.estimate.seeds) == (SEEDS - 1, SEEDS - 1)
    assert rate.verdict == HOLDS
    assert rate.text.endswith("seeds that reach ‖p‖ = 1e6")


def test_failed_flow_yields_no_value_and_does_not_affect_other_findings(made, limit):
    run = made(limit)
    records, reason = run.records, "the flow met NaN or a step too short to represent"
    failed = records["seed"] == 3
    records.loc[failed & (records["step"] > 20), "value"] = np.nan
    lost = [*CERTIFICATE, "max_margin", "relevant_selected"]
    records.loc[failed & records["metric"].isin(lost), "value"] = np.nan
    failure = {"cell": 0, "seed": 3, "phase": "limit", "step": 21, "reason": reason}
    run.manifest["failures"] = [failure, failure | {"cell": 1, "reason": "another"}]
    assert cells(run)[0].ends == f"‖p‖ = 1e6 in 39 of 40, 1 of 40 have no end: {reason}"
    found = [x for of in (GROWS, CONVERGES, SELECTS) for x in judged(of, run)]
    assert set(verdicts(found)) == {HOLDS}
    # The power is fitted to the available part of the flow.
    assert [x.missing for x in found if "exponent" not in x.text] == [1, 0, 1, 1]
    assert "nan" not in " ".join(x.measured + x.certificate for x in found)
    (_, held) = judged(SELECTS_WITHOUT, run)
    assert (held.verdict, held.estimate.seeds, held.why) == ("", 39, reason)
    assert held.counted == f"39 of 40 seeds: in 1 {reason}"


def test_limits_with_ties_are_measured(made, limit):
    def of(away, holds):
        found = {
            "limit_certified_distance": away,
            "limit_feasible": holds,
            "limit_duality_gap": 1e-13,
            "limit_primal_residual": 1e-14,
            "tied_sequences": 0.25,
        }
        return made(limit | {("limit", name): x for name, x in found.items()})

    near, finite, far, unproven = of(1e-10, 1.0), of(np.nan, 1.0), of(1e-3, 1.0), of(1e-10, 0.0)
    found = [judged(TIES, x) for x in (near, finite, far, unproven)]
    assert [first.counts[0] for first, _ in found] == [SEEDS, SEEDS, 0, 0]
    assert [first.verdict for first, _ in found] == [HOLDS] * 2 + [FAILS] * 2
    assert found[0][0].certificate.startswith("1 - cos ≤ 1e-10, gap ≤ 1e-13")
    assert found[1][0].certificate.startswith("gap")
    assert (found[0][1].estimate.value, found[0][1].verdict) == (0.25, "")


def test_claims_with_several_relevant_tokens_are_measured(made, limit):
    limit["limit", "only_relevant_selected"] = 0.0
    kind = {"data.kind": "multi_relevant", "data.relevant_per_sequence": 2}
    found = judged(SEVERAL, made(limit, **kind))
    assert verdicts(found) == [HOLDS, FAILS, HOLDS]
    assert found[0].setting.startswith("2 relevant tokens per sequence, V = 50")


@pytest.mark.parametrize("classes", [2, 4])
def test_exponent_of_d_in_the_one_step_law_is_recovered(made, classes):
    run = joined(
        *(
            made(
                {
                    ("step", "one_step_error"): [np.nan, 3 / d**0.5],
                    ("step", "embedding_error"): [np.nan, 2 / d],
                },
                **{"model.dim": d, "data.num_classes": classes},
            )
            for d in (64, 256, 1024)
        )
    )
    found = one_step(run)
    np.testing.assert_allclose([x.estimate.value for x in found], [-0.5, -1, 3])
    assert verdicts(found) == [HOLDS, FAILS, ""]
    assert found[0].setting.endswith("d = 64, 256, 1024")
    assert ("K = 4" in found[0].setting) == (classes == 4)


def test_joint_claim_requires_the_predicted_selection_and_direction(made, limit):
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
    alone = made(limit | {("limit", "relevant_margin"): 0.2})
    rows = judged(TOGETHER, alone, made(together, **until))
    assert verdicts(rows) == [HOLDS, HOLDS, FAILS, "", "", HOLDS]
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
        changed = made(together | {("together", name): wrong}, **until)
        assert judged(TOGETHER, alone, changed)[row].estimate.value == 0
    # The first study is the flow of p alone.
    with pytest.raises(KeyError):
        judged(TOGETHER, made(together, **until), alone)


def test_growth_in_text_studies_is_the_derivative_of_the_norm(made):
    found = {"p_norm": 2.0, "cos_p_descent": 0.5, "log_gradient_norm": np.log(0.02)}
    steps = {"phases.descent.steps": 1200, "phases.descent.step_size": 0.25}
    norm, growth = judged(GROWS_ON_TEXTS, made({("descent", name): x for name, x in found.items()}, **steps))
    np.testing.assert_allclose([norm.estimate.value, growth.estimate.value], [2.0, 300 * 0.5 * 0.02])
    # A limit that no run reaches never holds.
    assert verdicts([norm, growth]) == [UNKNOWN, UNKNOWN]


EQUAL = {"data.kind": "mine.py:equal_counts", "data.relevant": 20}


@pytest.fixture
def window(monkeypatch):
    """Return the window of these sizes without integrating; docs/findings/which_label.md has its edges."""
    set_window(monkeypatch, SimpleNamespace(lower=306.05, upper=1334.43))


def set_window(monkeypatch, window):
    function = ImportPaths(CLAIMS.item("label").folder).load("check.py:check")
    monkeypatch.setitem(function.__globals__, "label_window", lambda **_: window)


def at(made, step_size, kept):
    return made({("limit", "kept"): kept}, **EQUAL, **{"phases.step.step_size": step_size})


@pytest.mark.parametrize(("step_size", "inside"), [(200.0, False), (800.0, True), (2000.0, False)])
def test_label_claim_holds_if_labels_are_lost_exactly_inside_the_window(made, window, step_size, inside):
    (lost,), (kept,) = (judged(LABEL, at(made, step_size, x)) for x in (0.4, 1.0))
    assert (lost.verdict, kept.verdict) == ((HOLDS, FAILS) if inside else (FAILS, HOLDS))
    assert lost.setting == f"equal_counts, V = 50, n = 200, T = 8, d = 2048, η0 = {step_size:g}"
    assert lost.certificate == "a label is predicted to be ignored for η0 from 306 to 1334"


@pytest.mark.more
def test_prediction_of_the_label_window_uses_the_sizes_of_the_cell(made):
    (found,) = judged(LABEL, at(made, 800.0, 0.0))
    assert found.certificate == "a label is predicted to be ignored for η0 from 306 to 1334"


@pytest.mark.parametrize(("keep", "verdict"), [(0, HOLDS), (8, HOLDS), (20, UNKNOWN), (32, FAILS)])
def test_label_claim_depends_on_the_majority_of_seeds_near_a_window_bound(made, window, keep, verdict):
    beside = at(made, 355.0, 0.0)
    beside.records.loc[beside.records["seed"] < keep, "value"] = 1.0
    (found,) = judged(LABEL, beside)
    assert (found.verdict, found.expected.low, found.counts[0]) == (verdict, 0.5, SEEDS - keep)


def test_no_lost_label_is_predicted_if_there_is_no_window(made, monkeypatch):
    set_window(monkeypatch, SimpleNamespace(lower=np.nan, upper=np.nan))
    (found,) = judged(LABEL, at(made, 800.0, 1.0))
    assert (found.verdict, found.certificate) == (HOLDS, "a label is predicted to be ignored nowhere")


LAWFUL = {
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
def test_cover_claims_fail_if_the_value_law_or_the_token_order_is_violated(made, metric, value, expected):
    settings = {"data.relevant": 10, "model.init.E.scale": 0.01, "phases.all.until_log_loss": -1e4}
    records = {("all", name): x for name, x in (LAWFUL | {metric: value}).items()}
    found = judged(COVER, made(records, **settings))
    assert verdicts(found) == [*expected, ""]
    assert found[2].counts[0] == SEEDS
    assert found[0].setting.endswith("R = 10, d = 2048, initialisation scaled by 0.01")
    assert found[0].text.endswith("E·v within 1 % of the law at L = e^(-10,000)")


def test_mixture_claims_report_certificates(made):
    def of(certified, away):
        values = {"certified": certified, "far_error": away, "gap": 3e-16}
        return judged(MIXTURE, made({("both", name): x for name, x in values.items()}))

    found = [of(1.0, 2e-8), of(1.0, 2e-5), of(1.0, np.nan)]
    assert [verdicts(x) for x in found] == [[HOLDS, HOLDS], [HOLDS, FAILS], [HOLDS, FAILS]]
    assert [confirmed.certificate for _, confirmed in found] == [
        "1 - cos ≤ 2e-8, 0 converge to another direction, 0 cannot be followed",
        "1 - cos ≤ 2e-5, 40 converge to another direction, 0 cannot be followed",
        "0 converge to another direction, 40 cannot be followed",
    ]
    certified, confirmed = of(0.0, np.nan)
    assert (certified.verdict, confirmed.measured) == (FAILS, "no value")
    assert confirmed.counted == "0 of 40 seeds: in 40 no limit is certified"


def test_text_and_mixture_studies_have_seed_limits():
    limits = {
        (item.name, name): source.entry.most_seeds
        for item in CLAIMS.items
        for name, source in item.sources.items()
        if source.entry.most_seeds
    }
    assert limits == {("L4.1", "law-texts"): 32, ("L4.2", "flow-texts"): 3, ("mixture", "claim"): 128}
    for (name, study), most in limits.items():
        item = CLAIMS.item(name)
        assert len(item.study("full", study, seeds=1000).seeds) == most
        assert len(item.study("full", study, seeds=2).seeds) == 2


def test_every_claim_is_tested_in_its_own_settings():
    assert len(CLAIMS.items) == 11
    assert {item.words.settings for item in CLAIMS.items} == {"own"}


def test_text_data_with_three_classes_are_rejected(made, tmp_path):
    path = tmp_path / "three.csv"
    path.write_text("text,label\n" + "".join(f"word{x} and,{x}\n" for x in (0, 1, 2) * 4))
    run = made({("step", "one_step_error"): 0.1, ("step", "embedding_error"): 0.1})
    run.manifest["config"] = {"data": {"kind": "csv", "path": str(path), "labels": [0, 1, 2]}}
    settings = run.manifest["cells"][0]["settings"]
    others = {key: value for key, value in settings.items() if not key.startswith("data.")}
    run.manifest["cells"][0]["settings"] = others | {"data.kind": "csv"}
    with pytest.raises(ja.InputError, match="expected texts with two classes, got 3 classes"):
        _ = Cell(run, 0).data
