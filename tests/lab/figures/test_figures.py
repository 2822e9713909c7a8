import dataclasses
import inspect
import itertools

import matplotlib
import msgspec
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

import jaxattn as ja
from jaxattn.lab import kinds
from jaxattn.lab.figures import style
from jaxattn.lab.figures.curves import _scale_steps, curves
from jaxattn.lab.figures.draw import check_figures, draw_all, draw_figure, function
from jaxattn.lab.figures.scaling import collect, scaling
from jaxattn.lab.figures.token_figures import importance, one_step_law, top_tokens
from jaxattn.lab.results import aggregate
from jaxattn.lab.results.correlations import bin_means
from jaxattn.lab.results.tokens import final_tokens

SCALING = {"kind": "scaling", "axis": "model.dim", "expected": -0.5}


PAIRS = list(
    itertools.product(
        ["curves", "importance", "one_step_law", "top_tokens"],
        ["text", "one_seed", "dims", "classes", "failed"],
    )
)


@pytest.mark.parametrize(
    ("kind", "name"),
    # Each kind is tested with one or two folders, and each folder with one or two kinds.
    [
        pytest.param(*pair, marks=[] if number % 3 == 0 else pytest.mark.more)
        for number, pair in enumerate(PAIRS)
    ],
)
def test_every_figure_kind_can_be_drawn_for_every_example_folder(results, name, kind):
    drawn = draw_figure(results[name], {"kind": kind})
    assert style.png(drawn.figure, dpi=50).startswith(b"\x89PNG")
    assert len(drawn.caption) > 40


@pytest.mark.more
def test_every_figure_kind_escapes_dollar_signs(write, tmp_path):
    odd = "x^$2^$ or $5"
    axes = {"block": [odd, "plain"], f"data.{odd}": [1.0, 2.0], "model.dim": [8, 16]}
    folder = write(tmp_path / "run", axes=axes, seeds=2, vocab_size=60)
    run = ja.load(folder)
    renamed = {"metric": {"p_norm": odd}, "phase": {"joint": odd}}
    run = dataclasses.replace(run, records=run.records.replace(renamed))
    for spec in (
        {"kind": "curves", "metrics": ["loss", odd]},
        {"kind": "curves", "metrics": ["loss"], "x": odd},
        {"kind": "scaling", "axis": "model.dim", "metric": odd},
        {"kind": "scaling", "axis": f"data.{odd}", "metric": odd},
        {"kind": "convergence", "x": odd, "y": "loss"},
        {"kind": "diagram", "x_axis": "block", "y_axis": f"data.{odd}", "metric": odd},
    ):
        assert style.png(draw_figure(run, spec).figure, dpi=50).startswith(b"\x89PNG")


def test_drawing_does_not_change_rcparams(results):
    before = dict(matplotlib.rcParams)
    style.png(draw_figure(results["one_seed"], {"kind": "importance"}).figure)
    assert dict(matplotlib.rcParams) == before


def test_curves_show_the_mean_over_seeds(results):
    drawn = curves(results["dims"], metrics=("p_norm",), cells=(1, 3))
    lines = drawn.figure.axes[0].get_lines()
    table = aggregate(results["dims"])
    table = table[(table["metric"] == "p_norm") & (table["phase"] == "joint")]
    assert len(lines) == 2
    for line, cell in zip(lines, (1, 3), strict=True):
        rows = table[table["cell"] == cell]
        np.testing.assert_array_equal(line.get_xdata(), rows["step"])
        np.testing.assert_allclose(line.get_ydata(), rows["mean"], rtol=1e-12)
    assert "6 seeds" in drawn.caption
    assert "2 of 4 cells" in drawn.caption


@pytest.mark.parametrize(("decades", "ticks"), [(3, [0, 1, 10, 100, 1000]), (9, [0, 1, 1e3, 1e6, 1e9])])
def test_logarithmic_step_axis_has_few_ticks(decades, ticks):
    ax = Figure().subplots()
    rows = pd.DataFrame({"x": [0, *10.0 ** np.arange(decades + 1)], "mean": 1.0})
    _scale_steps(ax, rows)
    assert ax.get_xticks().tolist() == ticks


def test_log_scale_requires_nonnegative_values(load_planted):
    falls = [10.0**-k for k in range(6)]
    rows = [
        (0, seed, "p", step, metric, value)
        for step, mean in enumerate(falls)
        for seed in (0, 1)
        for metric, value in (("falls", mean), ("crosses", mean * (3.5 - 5 * seed)))
    ]
    config = {"phases": [{"name": "p"}]}
    run = load_planted(rows, name="x", config=config, cells=[{"cell": 0, "settings": {}}], seeds=[0, 1])

    def scales(**options):
        return [ax.get_yscale() for ax in curves(run, metrics=("falls", "crosses"), **options).figure.axes]

    assert (aggregate(run)["mean"] > 0).all()
    assert scales() == ["log", "linear"]
    assert scales(scale="linear") == ["linear", "linear"]
    with pytest.raises(
        ja.InputError,
        match='scale = "log" is not possible, because crosses has negative values; use "linear"',
    ):
        scales(scale="log")
    assert curves(run, metrics=("falls",), scale="log").figure.axes[0].get_yscale() == "log"
    assert draw_figure(run, {"kind": "curves", "metrics": ["falls"], "scale": "linear"}).figure.axes[0]
    with pytest.raises(ja.InputError, match="scale"):
        draw_figure(run, {"kind": "curves", "scale": "cubic"})


def test_curves_can_be_drawn_against_another_metric(results):
    """The x of each point is the mean of that metric, recomputed from the records."""
    run = results["dims"]
    drawn = curves(run, metrics=("loss",), cells=(2,), x="p_norm")
    (line,) = drawn.figure.axes[0].get_lines()
    rows = run.records[(run.records["phase"] == "joint") & (run.records["cell"] == 2)]
    for metric, data in (("p_norm", line.get_xdata()), ("loss", line.get_ydata())):
        values = rows[rows["metric"] == metric].pivot(index="step", columns="seed", values="value")
        np.testing.assert_allclose(data, values.mean(axis=1), rtol=1e-12)
    assert drawn.figure.axes[0].get_xlabel() == run.label("p_norm")
    assert "as a function of p_norm at the same step" in drawn.caption
    assert drawn.name == "curves_loss_p_norm"
    with pytest.raises(ja.InputError, match="did you mean 'p_norm'"):
        curves(run, x="p_nrm")
    with pytest.raises(ja.InputError, match="'embed': train_accuracy was recorded only in joint"):
        curves(run, x="train_accuracy", phase="embed")


def test_curves_omit_one_step_phases_and_share_panels(results):
    drawn = curves(results["one_seed"])
    assert "in the phases joint, late" in drawn.caption
    assert "band" not in drawn.caption
    titles = [ax.get_title(loc="left") for ax in drawn.figure.axes]
    assert [title for title in titles if "accuracy" in title] == ["accuracy, joint", "accuracy, late"]
    assert "in the phase embed" in curves(results["one_seed"], phase="embed").caption


def test_curves_show_a_subset_of_many_cells(results):
    run = results["text"]
    cells = [{"cell": cell, "settings": {"model.dim": cell + 1}} for cell in range(40)]
    loss = run.records[run.records["metric"] == "loss"]
    records = pd.concat([loss.assign(cell=np.int32(cell)) for cell in range(40)])
    many = dataclasses.replace(run, manifest=run.manifest | {"cells": cells}, records=records)
    assert "12 of 40 cells are shown" in curves(many, metrics=("loss",)).caption


def test_importance_shows_bin_means_and_counts_points_out_of_range(results):
    drawn = importance(results["text"], phase="joint")
    table = final_tokens(results["text"], phase="joint").table
    for ax, column in zip(drawn.figure.axes, ("Ev", "Ep"), strict=True):
        means = bin_means(table["posterior_difference"], table[column]).dropna()
        (line,) = (line for line in ax.get_lines() if line.get_marker() == "o")
        np.testing.assert_allclose(line.get_ydata(orig=False), means["mean"])
        np.testing.assert_allclose(line.get_xdata(orig=False), means["center"])
    outside = (table["posterior_difference"].abs() > 1).sum()
    assert (f" {outside} points outside" in drawn.caption) == (outside > 0)
    assert "400 tokens" in drawn.caption


def test_importance_band_spans_the_range_of_seed_means(results):
    drawn = importance(results["text"], phase="joint")
    table = final_tokens(results["text"], phase="joint", average=False).table
    assert table["seed"].nunique() > 1
    for ax, column in zip(drawn.figure.axes, ("Ev", "Ep"), strict=True):
        means = [
            bin_means(own["posterior_difference"], own[column])["mean"] for _, own in table.groupby("seed")
        ]
        (band,) = (each for each in ax.collections if isinstance(each, PolyCollection))
        drawn_at = band.get_paths()[0].vertices[:, 1]
        assert np.isclose(drawn_at.max(), np.nanmax(means))
        assert np.isclose(drawn_at.min(), np.nanmin(means))
    assert "band" in drawn.caption
    assert "band" not in importance(results["one_seed"]).caption


def test_legend_of_the_importance_figure_names_what_is_drawn(results):
    names = ["token", "mean and sd of a bin", "range over seeds"]
    for name, expected in (("text", names), ("one_seed", names[:2])):
        figure = importance(results[name]).figure
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == expected


def test_importance_uses_the_bins_of_the_run(results, configured):
    probes = {"bins": 4, "low": -0.5, "high": 0.5, "min_count": 50}
    drawn = importance(configured(results["text"], probes=probes))
    assert "4 equal bins of [-0.5, 0.5]" in drawn.caption


def test_score_label_of_a_two_layer_model_includes_the_weight_matrix(results, configured):
    drawn = importance(configured(results["text"], model={"kind": "two_layer_weights"}))
    assert "W_2" in drawn.figure.axes[1].get_title("left")
    assert "E·W2 p of" in drawn.caption
    assert "W2" not in importance(results["text"]).caption


def test_importance_has_one_row_per_class(results):
    assert len(importance(results["classes"]).figure.axes) == 6
    one = importance(results["classes"], label=0)
    assert len(one.figure.axes) == 2
    assert one.name.endswith("class0")
    with pytest.raises(ja.InputError, match="label 3: no such class; choose one of the classes 0, 1, 2"):
        importance(results["classes"], label=3)


def test_importance_shows_a_subset_of_many_classes(results, monkeypatch):
    monkeypatch.setattr("jaxattn.lab.figures.token_figures.MAX_CLASSES", 2)
    drawn = importance(results["classes"])
    assert len(drawn.figure.axes) == 4
    assert "2 of 3 classes are shown; option label draws another" in drawn.caption
    titles = [ax.get_title(loc="left") for ax in drawn.figure.axes]
    assert [sum(f"class {k})" in title for title in titles) for k in range(3)] == [1, 0, 1]
    assert "shown" not in importance(results["classes"], label=1).caption


def test_figures_show_class_names(results, configured):
    run = configured(results["classes"], data={"labels": ["1", "co$t$", "5"]})
    titles = [ax.get_title("left") for ax in importance(run).figure.axes]
    assert titles[3].endswith(r"(class co\$t\$)")
    assert importance(run, label="5").caption == importance(run, label=2).caption
    assert "for class 5" in importance(run, label="5").caption
    with pytest.raises(ja.InputError, match=r"label '0': .* classes 0 \(1\), 1 \(co\$t\$\), 2 \(5\)"):
        importance(run, label="0")
    (legend,) = top_tokens(run).figure.legends
    assert "class 5" in [text.get_text() for text in legend.get_texts()]
    two = configured(results["text"], data={"labels": ["bad", "fine"]})
    assert "posterior difference (positive: class fine, negative: class bad)" in importance(two).caption
    (legend,) = top_tokens(two).figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {"class fine", "class bad"}
    assert style.png(top_tokens(two).figure)


@pytest.mark.parametrize(("name", "slope"), [("text", 200 / 2), ("classes", 200)])
def test_one_step_law_draws_the_predicted_line(results, name, slope):
    drawn = one_step_law(results[name])
    (line,) = drawn.figure.axes[0].get_lines()
    np.testing.assert_allclose(np.asarray(line.get_ydata()), slope * np.asarray(line.get_xdata()))
    table = final_tokens(results[name], phase="embed", average=False).table
    correlation = np.corrcoef(table["alpha"], table["Ev"])[0, 1]
    assert drawn.figure.axes[0].get_title(loc="left") == f"correlation {correlation:.4f}"


def test_one_step_law_uses_swept_step_size(results):
    assert "η₀ = 1.00" in one_step_law(results["failed"], cell=0).caption
    assert "η₀ = 100" in one_step_law(results["failed"], cell=1).caption


def test_one_step_law_uses_the_step_size_of_the_block(results):
    run = results["text"]
    config = dict(run.manifest["config"]) | {"blocks": {"slow": {"phases": {"embed": {"step_size": 7.0}}}}}
    cells = [run.manifest["cells"][0] | {"settings": {"block": "slow"}}]
    other = dataclasses.replace(run, manifest=run.manifest | {"config": config, "cells": cells})
    assert "η₀ = 7.00" in one_step_law(other, cell=0).caption


def test_one_step_law_requires_one_step_phase(results, configured):
    phases = [{"kind": "descent", "name": "joint", "step_size": None}]
    other = configured(results["text"], phases=phases)
    with pytest.raises(ja.InputError, match="no phase of kind 'one_step'"):
        one_step_law(other)
    with pytest.raises(ja.InputError, match=r"phases\.joint\.step_size: no such key"):
        one_step_law(other, phase="joint")


def test_scaling_recovers_planted_slope(results):
    _, (line,) = collect(results["dims"], axis="model.dim", metric="one_step_error")
    logs = np.log(line.y)
    assert line.law.slope == pytest.approx(np.polyfit(np.repeat(np.log(line.x), 6), logs.ravel(), 1)[0])
    drawn = scaling(results["dims"], axis="model.dim", expected=-0.5)
    assert (
        f"Slope {line.law.slope:.3f} [{line.law.low:.3f}, {line.law.high:.3f}], expected -0.5."
        in drawn.caption
    )
    assert drawn.figure.axes[0].get_xscale() == drawn.figure.axes[0].get_yscale() == "log"


def test_scaling_draws_one_line_per_setting(results):
    _, series = collect(results["failed"], axis="model.dim", metric="one_step_error")
    assert [line.settings["data.kind"] for line in series] == ["a", "a", "b", "b"]
    assert all(len(line.x) == 2 for line in series)
    drawn = scaling(results["failed"], axis="model.dim", metric="p_norm", phase="joint")
    assert style.png(drawn.figure)


def test_scaling_handles_one_seed_or_one_value(results, folders):
    run = results["dims"]
    single = dataclasses.replace(run, records=run.records[run.records["seed"] == 0])
    assert "[" not in scaling(single, axis="model.dim").caption
    alone = dataclasses.replace(run, records=run.records[run.records["cell"] == 1])
    drawn = scaling(alone, axis="model.dim")
    assert "No fit" in drawn.caption
    assert (
        "3 cells without a positive finite value or other values of model.dim are not shown." in drawn.caption
    )
    assert style.png(drawn.figure)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"axis": "model.dimm"}, "axis 'model.dimm': not swept; swept keys: data.kind, model.dim"),
        ({"axis": "model.dim", "metric": "los"}, r"metric 'los': .* did you mean 'loss'\?"),
        ({"axis": "model.dim", "phase": "joint"}, "phase 'joint': one_step_error was recorded only in embed"),
        ({"axis": "data.kind"}, "the value in cell 0 is 'a'; logarithmic axes require positive numbers"),
        ({"axis": "model.dim", "metric": "log_gradient_norm"}, "no positive finite value"),
    ],
)
def test_scaling_rejects_invalid_input(results, options, message):
    with pytest.raises(ja.InputError, match=message):
        scaling(results["failed"], **options)


def test_top_tokens_shows_tokens_with_dollar_signs(results):
    run = results["one_seed"]
    names = run.tokens["token"].astype(object).where(run.tokens["id"] % 2 == 0, "$x^$")
    drawn = top_tokens(dataclasses.replace(run, tokens=run.tokens.assign(token=names)), number=30)
    assert style.png(drawn.figure)
    assert drawn.caption.startswith("The 30 tokens")


def test_top_tokens_are_drawn_even_if_no_font_has_their_letters(results):
    run = results["one_seed"]
    drawn = top_tokens(dataclasses.replace(run, tokens=run.tokens.assign(token="\U00013000映画")))
    assert style.png(drawn.figure)


@pytest.mark.parametrize("kind", ["curves", "importance", "one_step_law", "top_tokens"])
def test_unknown_phase_is_rejected(results, kind):
    with pytest.raises(ja.InputError, match="phase 'none'"):
        draw_figure(results["text"], {"kind": kind, "phase": "none"})


def test_curves_reject_unknown_metric(results):
    with pytest.raises(ja.InputError, match=r"metric 'los': .* did you mean 'loss'\?"):
        curves(results["text"], metrics=("los",))
    with pytest.raises(
        ja.InputError, match=r"metric 'zzz': not recorded; the run recorded .*Ev_bin_K, .*loss"
    ) as raised:
        curves(results["text"], metrics=("zzz",))
    assert "bin_1" not in str(raised.value)
    with pytest.raises(ja.InputError, match="separate names with spaces, not commas: 'loss p_norm'"):
        curves(results["text"], metrics=("loss,p_norm",))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "scalling"}, r"figures\[0\].kind: unknown 'scalling'; did you mean 'scaling'"),
        ({}, r"figures\[0\].kind: unknown None"),
        ({"kind": "scaling"}, "scaling requires 'axis'"),
        ({"kind": "diagram"}, "diagram requires 'x_axis' and 'y_axis'"),
        (
            {"kind": "importance", "cel": 0},
            "no option 'cel' .*#figures-figures.; did you mean 'cell'",
        ),
        (
            {"kind": "importance", "phase": "embd"},
            r"figures\[0\].phase: unknown 'embd'; did you mean 'embed'",
        ),
        (
            {"kind": "scaling", "axis": "data.length"},
            r"figures\[0\].axis: unknown 'data.length'; known: ",
        ),
    ],
)
def test_check_figures_rejects_invalid_figures(spec, message):
    with pytest.raises(ja.InputError, match=message):
        check_figures({0: spec}, phases=["embed", "joint"], axes=["model.dim"])


def test_check_figures_accepts_valid_figures():
    check_figures(
        {0: SCALING, 1: {"kind": "importance", "phase": None}}, phases=["embed"], axes=["model.dim"]
    )


def test_default_figures_are_curves_and_importance(results):
    figures, problems = draw_all(results["text"])
    assert [drawn.name for drawn in figures] == ["curves", "importance_joint"]
    assert not problems
    run = results["text"]
    assert [drawn.name for drawn in draw_all(dataclasses.replace(run, tokens=run.tokens.head(0)))[0]] == [
        "curves"
    ]


def test_figures_have_distinct_names_and_fail_independently(results, configured):
    figures = [
        SCALING,
        SCALING | {"expected": None},
        SCALING | {"metric": "los"},
        {"kind": "importance", "cell": 1},
    ]
    drawn, problems = draw_all(configured(results["dims"], figures=figures))
    names = [d.name for d in drawn]
    assert names == [
        "scaling_one_step_error_model-dim_embed",
        "scaling_one_step_error_model-dim_embed-2",
        "importance_joint_cell1",
    ]
    assert len(problems) == 1
    assert problems[0].line.startswith("figures[2] (scaling) could not be drawn: metric 'los'")


def test_every_figure_option_is_documented():
    for drawing in map(function, kinds.FIGURES):
        options = list(inspect.signature(drawing).parameters)[1:]
        assert all(f"    {name}: " in inspect.getdoc(drawing) for name in options)


def test_every_figure_option_has_a_toml_type():
    for drawing in map(function, kinds.FIGURES):
        for parameter in list(inspect.signature(drawing).parameters.values())[1:]:
            assert parameter.kind is parameter.KEYWORD_ONLY
            if parameter.default is not parameter.empty:
                assert msgspec.convert(parameter.default, parameter.annotation) == parameter.default
    convert = inspect.signature(function("curves")).parameters["cells"].annotation
    assert msgspec.convert([1, 2], convert) == (1, 2)


@pytest.mark.parametrize(
    ("kind", "words", "label"),
    [
        ("one_layer", "E·p", r"$E_s^\top p$"),
        ("key_query", "E·W p", r"$E_s^\top W p$"),
        ("two_layer_weights", "E·W2 p", r"$E_s^\top W_2\, p$"),
        ("mine.py:Turned", "the score", "score of token $s$"),
    ],
)
def test_score_label_depends_on_model(results, configured, kind, words, label):
    run = configured(results["dims"], model={"kind": kind})
    drawn = top_tokens(run)
    assert drawn.figure.axes[0].get_xlabel() == label
    assert f"the largest {words} " in drawn.caption
    drawn = importance(run)
    assert drawn.figure.axes[1].get_title(loc="left") == label
    assert run.label("spearman_Ep_signed_bins") == f"Spearman of {label} and posterior difference, bins"
    assert f"E·v and {words} of " in drawn.caption


def test_importance_caption_identifies_the_cell(results):
    drawn = importance(results["dims"], cell=2)
    assert drawn.title == "Token importance, cell 2 of 4"
    assert ", cell 2 of 4 (" in drawn.caption
    assert importance(results["one_seed"]).title == "Token importance"


def test_token_figures_are_rejected_for_cells_without_token_scores():
    for kind in ("importance", "one_step_law", "top_tokens"):
        specs = {0: {"kind": kind}, 1: {"kind": "curves"}}
        check_figures(specs, phases=["embed"], axes=[], without_tokens={1})
        with pytest.raises(ja.InputError, match=rf"^figures\[0\]: {kind} requires token scores and values"):
            check_figures(specs, phases=["embed"], axes=[], without_tokens={0})


@pytest.mark.more
def test_diagram_with_many_tiles_prints_no_values(write, tmp_path):
    axes = {"model.dim": list(range(1, 51)), "data.length": list(range(1, 10))}
    run = ja.load(write(tmp_path / "run", axes=axes, seeds=1, vocab_size=2))
    drawn = run.figure("diagram", metric="loss", x_axis="model.dim", y_axis="data.length")
    ax = drawn.figure.axes[0]
    assert len(ax.texts) == 0
    assert len(ax.get_xticks()) == 40
    cells = run.manifest["cells"][:180]
    fewer = dataclasses.replace(
        run, manifest=dict(run.manifest) | {"cells": cells}, records=run.records[run.records["cell"] < 180]
    )
    ax = fewer.figure("diagram", metric="loss", x_axis="model.dim", y_axis="data.length").figure.axes[0]
    assert len(ax.texts) == 180


def test_curves_are_drawn_against_time_if_the_phase_records_it(results):
    run = results["one_seed"]
    loss = run.records.query("phase == 'joint' and metric == 'loss'")
    times = loss.assign(metric="time", value=10.0 * loss["step"] ** 2)
    labels = {**run.manifest["labels"], "time": "$t$"}
    manifest = run.manifest | {"labels": labels}
    timed = dataclasses.replace(run, records=pd.concat([run.records, times]), manifest=manifest)
    drawn = curves(timed, phase="joint", metrics=("loss",))
    (ax,) = drawn.figure.axes
    assert ax.get_xlabel() == "$t$"
    assert ax.lines[0].get_xdata().tolist() == times["value"].tolist()
    assert "as a function of the time t in the phase joint" in drawn.caption
    (ax,) = curves(timed, phase="joint", metrics=("loss",), x="step").figure.axes
    assert ax.lines[0].get_xdata().tolist() == loss["step"].tolist()
    assert "of the step in the phase joint" in curves(run, phase="joint").caption


def test_curves_mark_where_seeds_fail(results):
    run = results["failed"]
    drawn = curves(run, metrics=("loss",), phase="joint", cells=(1, 2, 5))
    (ax,) = drawn.figure.axes
    crosses = [line.get_xdata().tolist() for line in ax.lines if line.get_marker() == "x"]
    expected = []
    for cell in (2, 5):
        own = run.records.query("metric == 'loss' and phase == 'joint'")
        lost = own[own["cell"] == cell].pivot(index="step", columns="seed", values="value").isna().sum(axis=1)
        expected.append(lost.index[np.diff(lost, prepend=0) > 0].tolist())
    assert crosses == expected
    assert len(expected[0]) == 2
    assert drawn.caption.endswith("A cross marks where a mean loses seeds.")
    assert "cross" not in curves(run, metrics=("loss",), phase="joint", cells=(1,)).caption


@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "curves", "metrics": ["p_norm"], "phase": "joint"},
        {"kind": "scaling", "axis": "model.dim", "metric": "p_norm", "phase": "joint"},
        {"kind": "convergence", "x": "p_norm", "y": "loss", "phase": "joint"},
    ],
)
def test_lines_differ_not_only_in_colour(results, spec):
    (legend,) = draw_figure(results["failed"], spec).figure.legends
    looks = [(line.get_marker(), line.get_linestyle()) for line in legend.get_lines()]
    assert len(looks) >= 4
    assert len(set(looks)) == len(looks)
