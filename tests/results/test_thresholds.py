"""Thresholds of made-up seeds with known thresholds: bisection finds their order statistics, which cover."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from jaxattn.results import style
from jaxattn.results.diagram import PhaseDiagram, boundary
from jaxattn.results.thresholds import (
    bracket,
    counts,
    ranks,
    threshold,
    turned_back,
    wanted,
)


def search(thresholds, values, parts=2):
    """Bisect over values as a study would; returns the answer and how many points were run."""
    crossed = {}
    while places := wanted(crossed, len(thresholds), len(values), parts):
        assert not places & crossed.keys()
        crossed |= {place: int((thresholds <= values[place]).sum()) for place in places}
    return threshold(crossed, len(thresholds), values), len(crossed)


@pytest.mark.parametrize("n", [1, 5, 6, 7, 16, 40, 64])
def test_the_ranks_are_those_of_the_sign_test(n):
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
def test_the_search_finds_order_statistics_in_a_few_points(rng, parts):
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
def test_the_interval_covers_the_median_of_any_law(rng, law):
    """Of 400 studies of 12 seeds; 92 % is four standard errors below the 96 % that the sign test covers."""
    draws, median = {
        "cauchy": (rng.standard_cauchy((400, 12)), 0.0),
        "exponential": (rng.exponential(size=(400, 12)), math.log(2)),
        "three points": (rng.choice([-1.0, 0.5, 2.0], p=[0.4, 0.2, 0.4], size=(400, 12)), 0.5),
    }[law]
    values = np.linspace(-4, 4, 65).tolist()
    found = [search(own, values)[0] for own in draws]
    covered = np.mean([answer["low"] <= median <= answer["high"] for answer in found])
    assert covered > 0.92


def test_what_lies_outside_of_the_values_is_said(rng):
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


def test_brackets_counts_and_seeds_that_turn_back():
    assert bracket({0: 0, 4: 9, 2: 3}, 4, 5) == (2, 4)
    assert bracket({0: 0, 4: 1}, 4, 5) == (4, 5)
    rows = [(1.0, 0, False), (2.0, 0, True), (3.0, 0, False), (1.0, 1, False), (3.0, 1, True)]
    rows += [(1.0, 2, False), (3.0, 2, False)]
    outcomes = pd.DataFrame(rows, columns=["y", "seed", "crossed"])
    assert turned_back(outcomes) == 1
    assert counts(outcomes, {1.0: 0, 2.0: 1, 3.0: 2}) == {0: 0, 1: 1, 2: 1}


@pytest.fixture
def planted(rng):
    """Thresholds of about √x for three x, one of them infinite."""

    def make(columns=(16, 64, "inf")):
        values, frames, rows = np.geomspace(1, 100, 33).tolist(), [], []
        for k, x in enumerate(columns):
            own = 4 * 2**k * np.exp(0.1 * rng.normal(size=8))
            y, seed = (part.ravel() for part in np.meshgrid(values, range(8)))
            frames.append(
                pd.DataFrame({"x": x, "y": y, "seed": seed, "value": 0.0, "crossed": y >= own[seed]})
            )
            rows.append({"x": x, **search(own, values)[0], "seeds": 8, "missing": 0, "turned_back": 0})
        outcomes = pd.concat(frames, ignore_index=True)
        return PhaseDiagram("model.dim", "phases.embed.step_size", "loss ≥ 1", outcomes, pd.DataFrame(rows))

    return make


def test_the_figure_lays_a_theory_over_the_thresholds(planted):
    diagram = planted()
    drawn = diagram.figure(lambda d: min(d, 256) ** 0.5, label="square root")
    ax = drawn.figure.axes[0]
    (dots,), bars = ax.containers[0][0:1], ax.containers[0][2][0]
    np.testing.assert_allclose(dots.get_ydata(), diagram.thresholds["threshold"])
    ends = np.array([segment[:, 1] for segment in bars.get_segments()])
    np.testing.assert_allclose(ends, diagram.thresholds[["low", "high"]])
    assert dots.get_xdata().tolist() == [16, 64, 256]  # ∞ is a factor beyond
    (curve,) = (line for line in ax.get_lines() if line.get_label() == "square root")
    np.testing.assert_allclose(curve.get_ydata(), np.minimum(curve.get_xdata(), 256) ** 0.5)
    assert [text.get_text() for text in ax.get_xticklabels()] == ["16", "64", "∞"]
    assert ax.get_yscale() == "log"
    assert "8 seeds" in drawn.caption
    assert "square root" in drawn.caption
    assert style.png(drawn.figure).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("columns", "places"),
    [
        ((16, "inf"), [16, 32]),
        ((16, 20, "inf"), [16, 20, 24]),
        ((4, 16, "inf"), [4, 16, 64]),
        (("inf",), [1]),
    ],
)
def test_infinity_stands_a_step_beyond_the_last_number(planted, columns, places):
    (dots,) = planted(columns).figure().figure.axes[0].containers[0][0:1]
    assert dots.get_xdata().tolist() == places


def test_words_and_values_of_a_theory(planted):
    diagram = planted(("sgd", "adam"))
    (curve,) = boundary(diagram, {"adam": 3.0}).figure.axes[0].get_lines()[-1:]
    assert curve.get_ydata().tolist() == [3.0]
    with pytest.raises(ValueError, match="no x = 'lion'"):
        boundary(diagram, {"lion": 1.0})
    with pytest.raises(ValueError, match="no numbers"):
        boundary(diagram, lambda x: 1.0)


def test_a_diagram_is_written_in_a_line(planted):
    text = repr(planted())
    assert text.startswith("PhaseDiagram(phases.embed.step_size at which loss ≥ 1, by model.dim: 16: ")
    assert "∞: " in text
    assert "<table" in planted()._repr_html_()
