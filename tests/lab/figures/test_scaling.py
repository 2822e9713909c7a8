"""Convergence figures and diagrams of records with planted powers."""

import numpy as np
import pytest

import jaxattn as ja
from jaxattn.lab.figures.diagram import diagram
from jaxattn.lab.figures.scaling import collect, collect_courses, convergence, scaling

STEPS = 20


@pytest.fixture(scope="module")
def planted(load_planted):
    """Records with y = 3 x^(-2) · seed noise (cell 0) and x^(-1) (cell 1), after an irregular start."""

    def make(cells=({"block": "slow"}, {"block": "fast"}), seeds=4):
        rows = []
        for cell in range(len(cells)):
            for seed in range(seeds):
                rng = np.random.default_rng([cell, seed])
                x = np.append(np.geomspace(1, 1e6, STEPS - 1) * rng.uniform(0.8, 1.2), np.nan)
                x[-1] = x[-2]
                y = rng.uniform(1, 3) * x ** (-2.0 if cell % 2 == 0 else -1.0)
                y[:3] = 1.0
                for step in range(STEPS):
                    for metric, value in (("p_norm", x), ("one_minus_cosine", y), ("margin_ratio", 1 - y)):
                        rows.append((cell, seed, "query", step, metric, value[step]))
                    rows.append((cell, seed, "embed", step, "loss", 1.0))
        return load_planted(
            sorted(rows, key=lambda row: row[2]),
            name="planted",
            config={"phases": [{"name": "embed"}, {"name": "query"}]},
            cells=[{"cell": k, "settings": settings} for k, settings in enumerate(cells)],
            seeds=list(range(seeds)),
        )

    return make


@pytest.fixture(scope="module")
def results(planted):
    return planted()


def test_convergence_recovers_planted_powers_in_each_block(results):
    phase, courses = collect_courses(results, x="p_norm", y="one_minus_cosine", phase=None, window=(1e2, 1e6))
    assert phase == "query"
    np.testing.assert_allclose([course.law.slope for course in courses], [-2, -1], atol=1e-9)
    drawn = convergence(results, fit_from=1e2, expected=-2.0)
    assert "block = slow: slope -2.000 [-2.000, -2.000], expected -2." in drawn.caption
    assert "block = fast: slope -1.000 [-1.000, -1.000], expected -2." in drawn.caption
    labels = [text.get_text() for text in drawn.figure.legends[0].get_texts()]
    assert labels[0].startswith("slow: slope")
    assert labels[-1] == "expected slope −2"


def test_scaling_leaves_out_other_blocks_and_single_points(planted):
    cells = [{"block": "width", "model.dim": dim} for dim in (2, 4, 8)]
    several = planted(cells=(*cells, {"block": "heads", "model.heads": 1}, {"block": "one", "model.dim": 4}))
    phase, (line,) = collect(several, axis="model.dim", metric="p_norm")
    assert (phase, line.settings) == ("query", {"block": "width"})
    assert line.x.tolist() == [2, 4, 8]
    caption = scaling(several, axis="model.dim", metric="p_norm").caption
    assert "2 cells without a positive finite value or other values of model.dim are not shown." in caption
    _, (alone,) = collect(planted(cells=cells[:1]), axis="model.dim", metric="p_norm")
    assert alone.x.tolist() == [2]


@pytest.mark.parametrize(("most", "fits"), [(9.0, False), (11.0, True)])
def test_scaling_fits_what_spans_a_decade_or_has_an_expected_slope(load_planted, most, fits):
    """A share that rises and falls has no power law, so no slope is drawn through it."""
    cells = [{"cell": k, "settings": {"model.dim": 4**k}} for k in range(3)]
    values = [1.0, most, 2.0]
    rows = [(k, seed, "query", 5, "loss", x) for k, x in enumerate(values) for seed in range(2)]
    run = load_planted(rows, name="share", config={"phases": [{"name": "query"}]}, cells=cells, seeds=[0, 1])
    drawn = scaling(run, axis="model.dim", metric="loss")
    assert ("Slope" in drawn.caption) == fits
    assert ("No fit: loss spans less than a decade, 1.00 to 9.00." in drawn.caption) == (not fits)
    lines = [line for line in drawn.figure.axes[0].get_lines() if len(line.get_xdata())]
    assert len(lines) == 1 + fits
    assert "expected 1" in scaling(run, axis="model.dim", metric="loss", expected=1.0).caption


def test_convergence_fit_depends_on_the_window(results):
    _, (slow, _) = collect_courses(
        results, x="p_norm", y="one_minus_cosine", phase=None, window=(0.0, np.inf)
    )
    assert abs(slow.law.slope + 2) > 0.01


def test_repeated_points_at_the_end_of_a_path_are_dropped(results):
    _, courses = collect_courses(results, x="p_norm", y="one_minus_cosine", phase=None, window=None)
    assert all(np.isnan(course.y[-1]).all() and np.isfinite(course.y[:-1]).all() for course in courses)
    assert all(np.isnan(course.law.slope) for course in courses)
    assert "slope" not in convergence(results).caption


def test_margin_shortfall_is_one_minus_the_margin_ratio(results):
    _, (slow, _) = collect_courses(results, x="p_norm", y="margin_shortfall", phase=None, window=(1e1, 1e3))
    np.testing.assert_allclose(slow.law.slope, -2, atol=1e-6)


def test_convergence_figure_shows_each_seed_and_the_median(results):
    drawn = convergence(results)
    lines = drawn.figure.axes[0].get_lines()
    _, courses = collect_courses(results, x="p_norm", y="one_minus_cosine", phase=None, window=None)
    assert len(lines) == 2 * (4 + 1)
    np.testing.assert_allclose(lines[4].get_ydata(), np.median(courses[0].y[:-1], axis=1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x": "norm"}, r"metric 'norm': not recorded by the run; did you mean 'p_norm'\?"),
        (
            {"x": "time"},
            "metric 'time': not recorded; the run recorded loss, margin_ratio, one_minus_cosine, p_norm",
        ),
        ({"phase": "embed"}, "phase 'embed': p_norm and one_minus_cosine were recorded only in query"),
        ({"x": "loss"}, "were recorded only in different phases"),
    ],
)
def test_convergence_rejects_invalid_input(results, options, message):
    with pytest.raises(ja.InputError, match=message):
        convergence(results, **options)


def test_diagram_prints_the_mean_in_every_tile(planted):
    cells = tuple({"model.dim": d, "phases.embed.step_size": s} for d in (16, 8) for s in (1.0, 30.0, 5.0))
    results = planted(cells)
    drawn = diagram(results, x_axis="model.dim", y_axis="phases.embed.step_size", metric="margin_ratio")
    ax = drawn.figure.axes[0]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["8", "16"]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["1", "5", "30"]
    last = results.records[(results.records.metric == "margin_ratio") & (results.records.step == STEPS - 1)]
    mean = last.groupby("cell")["value"].mean()
    fields = ax.collections[0].get_array().reshape(3, 2)
    # From bottom to top: step sizes 1, 5, 30; from left to right: d = 8, 16.
    np.testing.assert_allclose(fields, [[mean[3], mean[0]], [mean[5], mean[2]], [mean[4], mean[1]]])
    assert len(ax.texts) == 6
    assert " and over " not in drawn.caption


def test_diagram_caption_lists_averaged_axes(planted):
    cells = tuple({"model.dim": d, "a.b": s, "c": x} for d in (16, 8) for s in (1.0, 30.0) for x in (1, 2))
    drawn = diagram(planted(cells), x_axis="model.dim", y_axis="a.b", metric="margin_ratio")
    assert " and over c at the end of phase query, for every a.b and model.dim." in drawn.caption


def test_diagram_over_several_decades_uses_a_logarithmic_colour_scale(planted):
    cells = tuple({"model.dim": d, "phases.embed.step_size": s} for d in (16, 8) for s in (1.0, 30.0))
    results = planted(cells)
    axes = {"x_axis": "model.dim", "y_axis": "phases.embed.step_size"}
    decades = diagram(results, metric="one_minus_cosine", **axes).figure.axes[0].collections[0]
    low, high = decades.get_array().min(), decades.get_array().max()
    np.testing.assert_allclose(decades.norm(np.sqrt(low * high)), 0.5)
    shares = diagram(results, metric="margin_ratio", **axes).figure.axes[0].collections[0]
    assert (shares.norm.vmin, shares.norm.vmax) == (0, 1)


def test_diagram_rejects_unknown_axis_or_metric(results):
    with pytest.raises(ja.InputError, match=r"axis 'model.dim': not swept; swept keys: block"):
        diagram(results, x_axis="model.dim", y_axis="block")
    with pytest.raises(ja.InputError, match=r"metric 'important_selected': not recorded; the run recorded "):
        diagram(results, x_axis="block", y_axis="block")
