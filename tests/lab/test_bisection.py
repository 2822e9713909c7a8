"""Phase diagrams: of studies with known thresholds, and of made-up seeds, whose order statistics are found.

One step of size η on p = 0 ends at ‖p‖ = η ‖∇L‖.
"""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

import jaxattn as ja
from jaxattn.lab import bisection
from jaxattn.lab.bisection import bracket, counts, ranks, threshold, turned_back, wanted
from jaxattn.lab.storage import memo

LEVEL = 0.5
RATES = np.geomspace(4, 1e3, 17)
NOISES = [0.0, 0.4]
AXES = {"x": {"data.label_noise": NOISES}, "y": {"phases.query.step_size": RATES}}


def make(seeds=8, **tables):
    return ja.Study(
        name="crossing",
        seeds=seeds,
        dtype="float64",
        data=ja.data.Independent(vocab_size=20, relevant=8, length=4, sequences=40),
        model=ja.models.OneLayer(dim=16),
        init={"p": "zero"},
        phases=[ja.dynamics.Descent(name="query", train=["p"], optimizer="sgd", step_size=1.0, steps=1)],
        probes=ja.Probes(tokens=False),
        **tables,
    )


@pytest.fixture(scope="module")
def thresholds(tmp_path_factory):
    """η at which each seed comes to the level, (2, 8), from its gradient at the start."""
    study = make(axes={"data.label_noise": NOISES})
    records = study.run(tmp_path_factory.mktemp("own"), quiet=True).records
    first = records[(records["metric"] == "log_gradient_norm") & (records["step"] == 0)]
    return LEVEL / np.exp(first.pivot(index="cell", columns="seed", values="value").to_numpy())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One folder for all tests, which go from one to the next."""
    return tmp_path_factory.mktemp("rounds")


@pytest.fixture
def runs(monkeypatch):
    """Number of runs that each round computes, without rounds that find all runs in the folder."""
    runs = []
    execute = bisection.execute

    def computed(folder):
        return sum(len(record.runs) for record in memo.finished(folder, pytest.fail).values())

    def counted(study, folder, **options):
        before = computed(folder)
        outcome = execute(study, folder, **options)
        runs.extend([computed(folder) - before] * (not outcome.already_finished))
        return outcome

    monkeypatch.setattr(bisection, "execute", counted)
    return runs


def diagram(folder, seeds=8, metric="p_norm", level=LEVEL, **options):
    return ja.phase_diagram(
        make(seeds), **AXES | options, metric=metric, level=level, folder=folder, quiet=True
    )


@pytest.mark.more
def test_thresholds_are_order_statistics_over_seeds(folder, thresholds, runs):
    found = diagram(folder)
    factor = RATES[1] / RATES[0]
    assert found.thresholds["x"].tolist() == NOISES
    for row, own in zip(found.thresholds.itertuples(), np.sort(thresholds), strict=True):
        assert row.above < own[3] <= row.at_most
        assert row.low < own[0] <= row.low * factor * (1 + 1e-9)  # of 8 seeds, the least and the largest
        assert own[7] <= row.high < own[7] * factor * (1 + 1e-9)
        assert (row.seeds, row.missing, row.turned_back) == (8, 0, 0)
    for row in found.outcomes.itertuples():
        assert row.crossed == (row.y >= thresholds[NOISES.index(row.x), row.seed])
    # Both ends and three between them, then at most three brackets of each, cut by three more.
    assert len(runs) == 2
    assert sum(runs) <= 8 * 2 * (5 + 3 * 3)
    assert "p_norm ≥ 0.5" in repr(found)


@pytest.mark.more
def test_no_point_is_run_twice(folder, thresholds, runs):
    """Again, for another level, and with more seeds, of which only the new ones are run."""
    diagram(folder)
    runs.clear()
    again = diagram(folder)
    assert not runs
    assert again.thresholds["x"].tolist() == NOISES
    diagram(folder, level=1e-9)  # all seeds cross at the lowest rate, which was run
    assert not runs
    more = diagram(folder, seeds=10)
    assert runs
    assert more.thresholds["seeds"].tolist() == [10, 10]
    known = set(again.outcomes[["x", "y", "seed"]].itertuples(index=False, name=None))
    asked = set(more.outcomes[["x", "y", "seed"]].itertuples(index=False, name=None))
    assert sum(runs) == len(asked - known)


@pytest.mark.more
def test_falling_metrics_reuse_the_runs_and_report_seeds_that_turn_back(folder, runs):
    """-log ‖∇L‖ is below any level; a p that is short at a small η is not at a large one."""
    rises = diagram(folder)
    runs.clear()
    falls = diagram(folder, falls=True)
    assert not runs
    assert np.isnan(falls.thresholds["threshold"]).all()  # none has the level at the lowest rate
    assert (falls.thresholds["turned_back"] == 8).all()
    assert (rises.thresholds["turned_back"] == 0).all()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"x": {}}, "x: expected one key with its values, got 0 keys"),
        ({"y": {"phases.query.step_size": [2.0, 1.0]}}, "in ascending order"),
        ({"x": {"data.lenght": [4]}}, "lenght"),
        ({"x": {"data.length": [4, 6, 4]}}, "x: data.length = 4 is listed twice; list every value once"),
    ],
)
def test_invalid_input_is_rejected(folder, changes, why):
    with pytest.raises(ja.InputError, match=why):
        diagram(folder, **changes)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"metric": "p_nrm"}, "did you mean 'p_norm'"),
        ({"metric": "p_norm", "phase": "embd"}, "phase 'embd': p_norm was recorded only in embed, query"),
    ],
)
def test_metrics_that_are_not_recorded_are_rejected(tmp_path, study, asked, why):
    """The first runs show what is recorded. They are those of the small study, which other tests compile."""
    axes = {"x": {"phases.embed.step_size": [50.0]}, "y": {"phases.query.step_size": [0.1, 0.2]}}
    with pytest.raises(ja.InputError, match=why):
        ja.phase_diagram(study(seeds=1, chunk=1), **axes, **asked, level=LEVEL, folder=tmp_path, quiet=True)


def test_a_study_with_a_grid_is_rejected(folder):
    with pytest.raises(ja.InputError, match="study: axes cannot be combined with x and y"):
        ja.phase_diagram(make(axes={"model.dim": [4, 8]}), **AXES, metric="p_norm", folder=folder, quiet=True)


def search(thresholds, values, parts=2):
    """Bisect over values as a study would; returns the answer and how many points were run."""
    crossed = {}
    while places := wanted(crossed, len(thresholds), len(values), parts):
        assert not places & crossed.keys()
        crossed |= {place: int((thresholds <= values[place]).sum()) for place in places}
    return threshold(crossed, len(thresholds), values), len(crossed)


@pytest.mark.parametrize("n", [1, 5, 6, 7, 16, 40, 64])
def test_interval_ranks_match_the_sign_test(n):
    """P(T_(low) ≤ median ≤ T_(high)) is at least 95 %, and no narrower interval of the kind has that."""
    low, middle, high = ranks(n)
    assert middle == math.ceil(n / 2)
    if n < 6:
        assert (low, high) == (0, n + 1)
        return
    assert low + high == n + 1
    outside = binom.cdf(low - 1, n, 0.5)
    assert 2 * outside <= 0.05 < 2 * binom.cdf(low, n, 0.5)


@pytest.mark.parametrize("parts", [2, 3, 4, 7])
def test_bisection_finds_order_statistics_with_few_evaluations(rng, parts):
    values = np.geomspace(1e-2, 1e2, 257).tolist()
    for _ in range(20):
        own = np.exp(rng.normal(size=16))
        found, points = search(own, values, parts)
        order = np.sort(own)
        low, middle, high = ranks(16)
        assert found["above"] < order[middle - 1] <= found["at_most"]
        assert np.isclose(found["at_most"] / found["above"], values[1] / values[0])
        assert np.isclose(found["threshold"] ** 2, found["above"] * found["at_most"])
        assert found["low"] < order[low - 1] <= found["low"] * values[1] / values[0] * (1 + 1e-9)
        assert order[high - 1] <= found["high"] < order[high - 1] * values[1] / values[0] * (1 + 1e-9)
        rounds = math.ceil(math.log(256, parts))
        assert points <= 2 + (parts - 1) * (1 + 3 * rounds)


@pytest.mark.more
@pytest.mark.parametrize("law", ["cauchy", "exponential", "three points"])
def test_the_interval_covers_the_median_of_any_distribution(rng, law):
    """Of 400 studies of 12 seeds; 92 % is four standard errors below the 96 % that the sign test covers."""
    draws, median = {
        "cauchy": (rng.standard_cauchy((400, 12)), 0.0),
        "exponential": (rng.exponential(size=(400, 12)), math.log(2)),
        "three points": (rng.choice([-1.0, 0.5, 2.0], p=[0.4, 0.2, 0.4], size=(400, 12)), 0.5),
    }[law]
    values = np.linspace(-4, 4, 65).tolist()
    found = [search(own, values)[0] for own in draws]
    covered = np.mean([solution["low"] <= median <= solution["high"] for solution in found])
    assert covered > 0.92


def test_thresholds_outside_the_tested_range_are_reported_as_nan(rng):
    values = [1.0, 2.0, 3.0]
    none, _ = search(np.full(8, 9.0), values)
    assert np.isnan(none["threshold"])
    assert (none["above"], none["at_most"], none["low"], none["high"]) == (3, math.inf, 3, math.inf)
    every, points = search(np.full(8, 0.0), values)
    assert np.isnan(every["threshold"])
    assert (every["above"], every["low"], every["high"]) == (-math.inf, -math.inf, 1)
    assert points == 3  # both ends, and one between
    few, _ = search(np.full(5, 1.5), values)
    assert few["threshold"] == 1.5
    assert np.isnan(few["low"])
    assert np.isnan(few["high"])


def test_seeds_that_fall_back_below_the_level_are_counted():
    assert bracket({0: 0, 4: 9, 2: 3}, 4, 5) == (2, 4)
    assert bracket({0: 0, 4: 1}, 4, 5) == (4, 5)
    rows = [(1.0, 0, False), (2.0, 0, True), (3.0, 0, False), (1.0, 1, False), (3.0, 1, True)]
    rows += [(1.0, 2, False), (3.0, 2, False)]
    outcomes = pd.DataFrame(rows, columns=["y", "seed", "crossed"])
    assert turned_back(outcomes) == 1
    assert counts(outcomes, {1.0: 0, 2.0: 1, 3.0: 2}) == {0: 0, 1: 1, 2: 1}


@pytest.mark.more
def test_seed_whose_fraction_equals_the_level_has_crossed(tmp_path):
    """The selected fractions are multiples of 1/20, and some seeds are exactly at 0.7."""
    study = ja.Study(
        name="level",
        seeds=8,
        data=ja.data.Assumption1(vocab_size=12, relevant=4, length=4, sequences=16, test_sequences=20),
        model=ja.models.OneLayer(dim=8),
        phases=[ja.dynamics.OneStep(name="embed", step_size=1.0)],
        probes=ja.Probes(tokens=False),
    )
    options = {"metric": "test_accuracy", "level": 0.7, "folder": tmp_path, "quiet": True}
    axes = {"x": {"model.dim": [8]}, "y": {"phases.embed.step_size": [0.5, 1.0, 2.0, 4.0]}}
    outcomes = ja.phase_diagram(study, **axes, **options).outcomes
    right = np.rint(20 * outcomes["value"])
    assert (right == 14).any()
    assert (outcomes["crossed"] == (right >= 14)).all()
    falls = ja.phase_diagram(study, **axes, **options, falls=True).outcomes
    assert (falls["crossed"] == (np.rint(20 * falls["value"]) < 14)).all()
