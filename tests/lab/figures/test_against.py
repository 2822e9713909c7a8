"""Figures of a metric against a swept key: points and intervals match the records."""

import numpy as np
import pytest
import scipy.stats

import jaxattn as ja
from jaxattn.lab.figures.against import against
from jaxattn.lab.figures.draw import check_figures, draw_figure, metrics_of

SIZES, VOCABULARIES, KINDS, SEEDS = (0.1, 1.0, 10.0, 100.0), (20, 40), ("hinge", "logistic"), 4


def value(size, vocabulary, kind, seed):
    return np.sin(size) + vocabulary / 10 + 5 * KINDS.index(kind) + seed**2 / 7


@pytest.fixture
def run(load_planted):
    settings = [
        {"phases.query.step_size": size, "data.vocab_size": vocabulary, "loss": kind}
        for size in SIZES
        for vocabulary in VOCABULARIES
        for kind in KINDS
    ]
    rows = [
        # Cells of one vocabulary end at another step.
        (cell, seed, "query", step * (1 + (found["data.vocab_size"] == 40)), name, sign * step * x)
        for cell, found in enumerate(settings)
        for seed in range(SEEDS)
        for x in [value(*found.values(), seed)]
        for step in (0, 1)
        for name, sign in (("loss", 1.0), ("drop", -1.0))
    ]
    rows = [(*row[:-1], np.nan) if row[:5] == (0, 1, "query", 1, "drop") else row for row in rows]
    cells = [{"cell": k, "settings": s, "config_hash": str(k)} for k, s in enumerate(settings)]
    config = {"phases": [{"name": "query"}], "model": {}}
    return load_planted(rows, name="x", config=config, cells=cells, seeds=list(range(SEEDS)), failures=[])


def drawn(ax):
    """Return the x, the means and the ends of the bars of every line with bars."""
    found = []
    for container in ax.containers:
        line, _, (bars,) = container
        ends = np.array([np.asarray(path)[:, 1] for path in bars.get_segments()])
        found.append((line.get_xdata(), line.get_ydata(), ends))
    return found


def expected(values):
    """Return the mean and Student's interval of each row."""
    mean, error = values.mean(axis=1), scipy.stats.sem(values, axis=1)
    half = error * scipy.stats.t.ppf(0.975, values.shape[1] - 1)
    return mean, np.stack([mean - half, mean + half], axis=1)


def test_lines_and_panels_match_the_records(run):
    figure = against(run, axis="phases.query.step_size", lines="data.vocab_size", panels="loss").figure
    axes = figure.axes
    assert [ax.get_title(loc="left") for ax in axes] == ["loss = hinge", "loss = logistic"]
    assert axes[0].get_xscale() == "log"
    for ax, kind in zip(axes, KINDS, strict=True):
        for (x, mean, ends), vocabulary in zip(drawn(ax), VOCABULARIES, strict=True):
            rows = [[value(size, vocabulary, kind, seed) for seed in range(SEEDS)] for size in SIZES]
            np.testing.assert_array_equal(x, SIZES)
            for found, wanted in zip((mean, ends), expected(np.array(rows)), strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-9)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["$V$ = 20", "$V$ = 40"]
    looks = {(line.get_marker(), line.get_linestyle()) for line in legend.get_lines()}
    assert len(looks) == 2  # Lines differ not only in colour.


def test_other_keys_are_averaged_for_each_seed(run):
    found = against(run, axis="loss", metric="loss")
    assert "averaged over phases.query.step_size, data.vocab_size" in found.caption
    (ax,) = found.figure.axes
    ((x, mean, ends),) = drawn(ax)
    assert [text.get_text() for text in ax.get_xticklabels()] == list(KINDS)
    rows = [
        [np.mean([value(a, b, kind, seed) for a in SIZES for b in VOCABULARIES]) for seed in range(SEEDS)]
        for kind in KINDS
    ]
    np.testing.assert_array_equal(x, [0, 1])
    for found, wanted in zip((mean, ends), expected(np.array(rows)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_a_failed_seed_is_marked(run):
    keys = {"axis": "phases.query.step_size", "lines": "data.vocab_size", "panels": "loss"}
    found = against(run, metric="drop", **keys)
    crosses = [
        line.get_xdata().tolist() for ax in found.figure.axes for line in ax.lines if line.get_marker() == "x"
    ]
    assert [x for x in crosses if x] == [[0.1]]
    assert found.caption.endswith("A cross marks a mean without the seeds that have no value (1 in all).")
    assert against(run, metric="loss", **keys).caption.endswith("intervals.")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"axis": "model.dim"}, "model.dim: not swept; swept keys: phases.query.step_size"),
        ({"axis": "loss", "lines": "loss"}, "loss: named twice"),
        ({"axis": "loss", "metric": "los"}, "did you mean 'loss'"),
        ({"axis": "loss", "metric": "drop", "scale": "log"}, "drop has values of 0 or below"),
        ({"axis": "loss", "phase": "embed"}, "phase 'embed'"),
    ],
)
def test_invalid_options_raise(run, options, words):
    with pytest.raises(ja.InputError, match=words):
        against(run, **options)


def test_options_are_checked_before_the_run(run):
    spec = {"kind": "against", "axis": "loss", "lines": "data.vocab_siz"}
    with pytest.raises(ja.InputError, match=r"figures\[0\].lines: unknown .*did you mean 'data.vocab_size'"):
        check_figures({0: spec}, phases=["query"], axes=run.axes)
    assert metrics_of({0: {"kind": "against", "axis": "loss", "metric": "drop"}}) == {
        "figures[0].metric": "drop"
    }
    drawing = draw_figure(run, {"kind": "against", "axis": "loss", "metric": "drop"})
    assert drawing.name == "against_drop_loss"
