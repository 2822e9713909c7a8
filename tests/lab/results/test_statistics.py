import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from jaxattn.lab import results as results_package
from jaxattn.lab.results import summary_table
from jaxattn.lab.results.combine import group, paired
from jaxattn.lab.results.labels import interval
from jaxattn.lab.results.run import Run
from jaxattn.lab.results.statistics import STATISTICS, last_steps, summary_title, summary_words, transposed


def table(values, *, metric="loss", cell=0, step=0, phase="p"):
    """Build records of one series, with one seed per value."""
    return pd.DataFrame(
        {
            "cell": np.int32(cell),
            "seed": np.arange(len(values), dtype=np.int32),
            "phase": phase,
            "step": step,
            "metric": metric,
            "value": np.asarray(values, float),
        }
    )


def aggregate(records, scale=None, **options):
    """Aggregate a run, or records whose metrics all have one scale (kind, low, high)."""
    if isinstance(records, Run):
        return results_package.aggregate(records, **options)
    cells = [{"cell": cell, "settings": {}} for cell in records["cell"].unique().tolist()]
    scales = {} if scale is None else dict.fromkeys(records["metric"], scale)
    manifest = {"cells": cells, "scales": scales}
    return results_package.aggregate(Run(Path(), manifest, records, pd.DataFrame()), **options)


def iqm(values):
    """Compute the interquartile mean from four copies of every value without the outer quarters."""
    copies = np.repeat(np.sort(values), 4)
    return copies[len(values) : 3 * len(values)].mean()


def one(values, **options):
    return aggregate(table(values), **options).iloc[0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 3.0], 2.0),
        ([0.0, 1.0, 100.0], (0.25 * 0 + 1 * 1 + 0.25 * 100) / 1.5),
        ([5.0, 1.0, 2.0, 100.0], 3.5),
        ([10.0, 0.0, 1.0, 2.0, 100.0], 0.3 * 1 + 0.4 * 2 + 0.3 * 10),
    ],
)
def test_interquartile_mean_of_small_samples_matches_the_definition(values, expected):
    assert one(values)["iqm"] == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("n", [4, 8, 20])
def test_interquartile_mean_equals_trimmed_mean_if_4_divides_n(n):
    values = np.random.default_rng(n).standard_normal(n)
    assert one(values)["iqm"] == pytest.approx(scipy.stats.trim_mean(values, 0.25), rel=1e-13)


def test_scale_of_custom_metric_is_declared_by_its_probe(load_planted):
    values = {
        "mass": [0.99, 1.0, 0.7],
        "tail_03": [1e-6, 1e-4, 1e-2],
        "hit": [1.0, 1.0, 0.0],
        "Ev": [1.0, 2, 9],
    }
    rows = [(0, seed, "p", 1, name, x) for name, every in values.items() for seed, x in enumerate(every)]
    known = {"name": "x", "config": {"phases": [{"name": "p"}]}, "seeds": [0, 1, 2]}
    scales = {"mass": ["linear", 0, 1], "tail": ["log", 0, None], "hit": ["yes/no", 0, 1]}
    cells = [{"cell": 0, "settings": {}}]
    found = aggregate(load_planted(rows, **known, cells=cells, scales=scales)).set_index("metric")
    assert found["scale"].to_dict() == {"mass": "linear", "tail_03": "log", "hit": "yes/no", "Ev": "linear"}
    assert found.loc["mass", "mean_high"] == 1.0
    assert found.loc["tail_03", "mean"] == pytest.approx(1e-4)
    assert found.loc["tail_03", "mean_low"] > 0
    pattern = {"m*": ["linear", 0, 1]}
    found = aggregate(load_planted(rows, **known, cells=cells, scales=pattern)).set_index("metric")
    assert found.loc["mass", "mean_high"] == 1.0 < found.loc["hit", "mean_high"]
    plain = aggregate(load_planted(rows, **known, cells=cells)).set_index("metric")
    assert plain.loc["mass", "mean_high"] > 1.0
    assert set(plain["scale"]) == {"linear"}


def test_mean_and_median_match_numpy():
    values = np.random.default_rng(0).standard_normal(7)
    row = one(values)
    assert row["mean"] == pytest.approx(values.mean())
    assert row["median"] == pytest.approx(np.median(values))


def test_means_have_student_intervals():
    values = np.random.default_rng(3).standard_normal(5)
    row = one(values, confidence=0.9)
    expected = scipy.stats.t.interval(0.9, 4, values.mean(), scipy.stats.sem(values))
    np.testing.assert_allclose(row[["mean_low", "mean_high"]].astype(float), expected, rtol=1e-12)
    assert row["scale"] == "linear"


def test_mean_of_a_log_scale_metric_is_the_geometric_mean():
    values = 10.0 ** np.random.default_rng(3).uniform(-12, -6, 7)
    row = aggregate(table(values), ("log", 0, 2)).iloc[0]
    logs = np.log(values)
    low, high = np.exp(scipy.stats.t.interval(0.95, 6, logs.mean(), scipy.stats.sem(logs)))
    expected = [scipy.stats.gmean(values), low, high]
    np.testing.assert_allclose(row[["mean", "mean_low", "mean_high"]].astype(float), expected, rtol=1e-10)
    assert row["scale"] == "log"
    zero = aggregate(table([0.0, 1.0, 2.0]), ("log", 0, None)).iloc[0]
    assert (zero["scale"], zero["mean"]) == ("linear", 1.0)


@pytest.mark.parametrize("hits", [0, 3, 5])
def test_yes_no_metric_has_clopper_pearson_interval(hits):
    row = aggregate(table(np.arange(5) < hits), ("yes/no", 0, 1)).iloc[0]
    low, high = scipy.stats.binomtest(hits, 5).proportion_ci(method="exact")
    np.testing.assert_allclose(row[["mean", "mean_low", "mean_high"]].astype(float), [hits / 5, low, high])
    assert row["scale"] == "yes/no"


def test_intervals_are_clipped_to_the_metric_range():
    high = aggregate(table([0.9, 1.0, 1.0]), ("linear", 0, 1)).iloc[0]
    assert high["mean_low"] < high["mean"] < high["mean_high"] == 1
    away = aggregate(table([1e-3, 0.4]), ("log", 0, 2)).iloc[0]
    assert 0 < away["mean_low"] < away["mean"] < away["mean_high"] == 2
    # The declared range is wrong.
    other = aggregate(table([90.0, 91.0, 95.0]), ("linear", 0, 1)).iloc[0]
    assert other["mean_low"] < 92 < other["mean_high"]
    # One value exceeds the range by a rounding error.
    rounded = aggregate(table([0.9, 1.0, 1 + 2e-7]), ("linear", 0, 1)).iloc[0]
    assert rounded["mean_high"] == 1 + 2e-7


def test_a_clipped_interval_covers_a_mean_at_least_as_often():
    """The means of exponential samples are positive, and many of their intervals contain negative numbers."""
    samples = np.random.default_rng(0).exponential(size=(500, 3))
    frames = [table(x, cell=cell) for cell, x in enumerate(samples)]
    found = aggregate(pd.concat(frames, ignore_index=True), ("linear", 0, None))
    low, high = scipy.stats.t.interval(0.95, 2, samples.mean(axis=1), scipy.stats.sem(samples, axis=1))
    assert (low < 0).mean() > 0.2
    np.testing.assert_allclose(found["mean_low"], np.maximum(low, 0), atol=1e-12)
    np.testing.assert_allclose(found["mean_high"], high)
    covered = (found["mean_low"] <= 1) & (found["mean_high"] >= 1)
    np.testing.assert_array_equal(covered, (low <= 1) & (high >= 1))


def test_no_interval_is_reported_if_all_seeds_have_the_same_value(results):
    row = aggregate(table([1.0] * 30), ("linear", -1, 1)).iloc[0]
    assert row["mean"] == 1
    assert row[["mean_low", "mean_high", "iqm_low", "iqm_high"]].isna().all()
    run = results["dims"]
    same = dataclasses.replace(run, records=run.records.assign(value=1.0))
    assert (summary_table(same, metrics=["loss"]) == "1.00 (all equal)").any(axis=None)


def test_differences_use_a_linear_scale(results):
    differences = paired(results["dims"], "model.dim", 64, 128)
    assert set(aggregate(differences)["scale"]) == {"linear"}


def test_interquartile_mean_interval_matches_its_formula():
    values = np.sort(np.random.default_rng(1).exponential(size=11))
    inner = values[2:9]
    winsorised = np.array([inner[0]] * 2 + list(inner) + [inner[-1]] * 2)
    error = np.sqrt(sum((x - winsorised.mean()) ** 2 for x in winsorised) / (7 * 6))
    half = scipy.stats.t.ppf(0.95, 0.8 * 6) * error
    row = one(values, confidence=0.9)
    np.testing.assert_allclose([row["iqm_low"], row["iqm_high"]], [iqm(values) - half, iqm(values) + half])
    assert np.isnan(one(values[:3])[["iqm_low", "iqm_high"]].astype(float)).all()
    assert np.isnan(one([0.0, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 1.0])["iqm_low"])
    # The interval is clipped to the range of the metric.
    row = aggregate(table([0.1, 0.2, 0.99, 1.0, 1.0]), ("linear", 0, 1)).iloc[0]
    assert row["iqm_low"] == 0
    assert row["iqm_high"] == 1


@pytest.mark.parametrize("n", [5, 8, 10, 20, 41])
def test_interquartile_mean_interval_covers_the_true_value(n):
    truth = {"normal": 0.0, "exponential": scipy.stats.expon.ppf(np.linspace(0.25, 0.75, 20_001)).mean()}
    covered = {}
    for law, true in truth.items():
        found = aggregate(_steps(getattr(np.random.default_rng(n), law)(size=(6000, n))))
        covered[law] = ((found["iqm_low"] <= true) & (true <= found["iqm_high"])).mean()
    # The standard error of 6,000 repetitions is 0.003.
    assert covered["normal"] >= 0.94
    assert covered["exponential"] >= 0.92


def _steps(values):
    """Build records with one series per row of values."""
    steps, seeds = np.indices(values.shape)
    rows = {"cell": 0, "seed": seeds.ravel(), "phase": "p", "step": steps.ravel(), "metric": "loss"}
    return pd.DataFrame(rows | {"value": values.ravel()})


def test_interval_width_scales_like_standard_error():
    rng = np.random.default_rng(2)
    small, large = (one(rng.standard_normal(n)) for n in (10, 1000))
    width = large["mean_high"] - large["mean_low"]
    assert width == pytest.approx(2 * 1.96 / np.sqrt(1000), rel=0.1)
    assert small["mean_high"] - small["mean_low"] > 5 * width


def test_nonfinite_seeds_are_dropped():
    values = [1.0, np.nan, 3.0, np.inf, -np.inf, 8.0]
    with_gaps, without = one(values), one([1.0, 3.0, 8.0])
    assert (with_gaps["n"], with_gaps["missing"]) == (3, 3)
    pd.testing.assert_series_equal(with_gaps.drop("missing"), without.drop("missing"))


def test_one_seed_gives_no_interval_and_zero_seeds_give_no_mean():
    single, none = one([2.5]), one([np.nan, np.nan])
    assert (single["n"], single["mean"], single["median"], single["iqm"]) == (1, 2.5, 2.5, 2.5)
    assert single[["mean_low", "mean_high", "iqm_low", "iqm_high"]].isna().all()
    assert none["n"] == 0
    assert none[list(STATISTICS)].isna().all()


def test_aggregates_do_not_depend_on_other_rows_or_their_order():
    rng = np.random.default_rng(4)
    frames = [
        table(rng.standard_normal(n), metric=metric, cell=cell, step=step)
        for cell, n in ((0, 5), (1, 5), (2, 6))
        for metric in ("b", "a")
        for step in (10, 0)
    ]
    whole = aggregate(pd.concat(frames, ignore_index=True))
    shuffled = pd.concat(frames).sample(frac=1, random_state=0)
    keys = ["cell", "phase", "step", "metric"]
    other = aggregate(shuffled).set_index(keys).loc[pd.MultiIndex.from_frame(whole[keys])].reset_index()
    pd.testing.assert_frame_equal(whole, other, rtol=1e-12)
    alone = aggregate(frames[5])
    same = whole.merge(alone[keys])
    pd.testing.assert_frame_equal(same, alone, rtol=1e-12)


def test_rows_are_sorted_by_cell_phase_step_metric():
    frames = [
        table([1.0], phase=phase, step=step, cell=cell)
        for cell in (1, 0)
        for phase in "zy"
        for step in (9, 1)
    ]
    found = aggregate(pd.concat(frames))[["cell", "phase", "step"]].to_records(index=False).tolist()
    assert found == [(cell, phase, step) for cell in (0, 1) for phase in "zy" for step in (1, 9)]


def test_empty_records_give_an_empty_aggregate():
    empty = aggregate(table([]))
    assert empty.empty
    assert list(empty.columns) == ["cell", "phase", "step", "metric", "scale", "n", "missing", *STATISTICS]


def test_axis_columns_follow_the_cell_column(results):
    found = aggregate(results["dims"])
    assert list(found.columns[:3]) == ["cell", "model.dim", "phase"]
    assert dict(found[["cell", "model.dim"]].drop_duplicates().to_numpy()) == {0: 64, 1: 128, 2: 256, 3: 512}


def test_last_steps_are_determined_for_each_phase_and_metric():
    frames = [
        table([1.0], step=3),
        table([1.0], step=7),
        table([1.0], metric="other", step=3),
        table([2.0], phase="q"),
    ]
    last = last_steps(pd.concat(frames))
    assert last[["phase", "metric", "step"]].to_numpy().tolist() == [
        ["p", "loss", 7],
        ["p", "other", 3],
        ["q", "loss", 0],
    ]


def test_summary_of_one_cell_has_one_row_per_metric(results):
    summary = summary_table(results["text"])
    assert list(summary.columns) == ["metric", "embed", "joint"]
    assert not summary["metric"].str.contains("_bin_").any()
    cells = summary.set_index("metric")
    values = aggregate(results["text"]).query("metric == 'test_accuracy' and phase == 'joint'")
    row = last_steps(values).iloc[0]
    assert cells.loc["test_accuracy", "joint"] == interval(row["mean"], row["mean_low"], row["mean_high"])
    assert cells.loc["test_accuracy", "embed"] == ""


def test_summary_of_few_cells_has_one_column_per_cell(results):
    run = results["dims"]
    embed = dataclasses.replace(run, records=run.records[run.records["phase"] == "joint"])
    heads = ["model.dim = 64", "model.dim = 128", "model.dim = 256", "model.dim = 512"]
    assert list(summary_table(embed).columns) == ["metric", *heads]


def test_summary_of_many_cells_has_one_row_per_cell_and_phase(results):
    summary = summary_table(results["failed"], metrics=["loss", "p_norm"], statistic="mean")
    assert list(summary.columns) == [*results["failed"].axes, "phase", "loss", "p_norm"]
    assert len(summary) == 8 * 2
    assert summary.loc[5, "loss"].endswith(" (n=2)")
    assert "of" not in summary.loc[4, "loss"]


def test_summary_title_describes_the_statistics_shown(results):
    interval = " [95 % interval, Student's t]"
    geometric = "; for one_step_error the geometric mean [Student's t of the logarithm]"
    dims, failed = results["dims"], results["failed"]
    assert summary_title(dims) == f"Last step of each phase: mean over 6 seeds{interval}{geometric}"
    assert summary_words(failed).startswith(f"mean over 2 to 4 seeds{interval}")
    assert summary_words(results["one_seed"]) == "1 seed, without an interval"
    gone = dataclasses.replace(dims, records=dims.records.assign(value=np.nan))
    assert summary_words(gone) == "no seed has a value"
    pairs = group(paired(dims, "model.dim", 64, 256), ["model.kind"])
    start = "Differences (model.dim = 256 minus 64), means over cells of the same model.kind, last step of"
    assert summary_title(pairs) == f"{start} each phase: mean over 6 seeds{interval}"


def test_summary_of_one_seed_has_no_interval(results):
    assert (
        not summary_table(results["one_seed"])
        .astype(str)
        .apply(lambda c: c.str.contains(r"\["))
        .any(axis=None)
    )


def test_an_axis_may_have_the_name_of_a_metric(load_planted):
    cells = [
        {"cell": k, "settings": {"loss": kind, "model.dim": k}, "config_hash": str(k)}
        for k, kind in enumerate(("hinge", "logistic"))
    ]
    rows = [
        (cell, seed, "query", 1, name, 1.0 + cell)
        for cell in (0, 1)
        for seed in (0, 1)
        for name in ("loss", "a", "b", "c")
    ]
    run = load_planted(
        rows, name="x", config={"phases": [{"name": "query"}]}, cells=cells, seeds=[0, 1], failures=[]
    )
    rows = summary_table(run, metrics=["loss"])
    assert rows.columns.tolist() == ["loss (setting)", "model.dim", "phase", "loss"]
    assert rows["loss (setting)"].tolist() == ["hinge", "logistic"]
    assert rows["loss"].str[:4].tolist() == ["1.00", "2.00"]
    wide = summary_table(run)
    assert wide.columns.tolist() == [
        "metric",
        "loss (setting) = hinge, model.dim = 0",
        "loss (setting) = logistic, model.dim = 1",
    ]


def test_transposed_summary_omits_axes_without_a_value():
    rows = pd.DataFrame(
        {"block": ["Adam", "SGD"], "decay": ["0.1", ""], "phase": ["joint"] * 2, "loss": ["1", "2"]}
    )
    assert list(transposed(rows, 3).columns) == [
        "metric", "block = Adam, decay = 0.1", "block = SGD",
    ]  # fmt: skip
