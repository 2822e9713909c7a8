"""Figures of phase diagrams of synthetic seeds with known thresholds."""

import numpy as np
import pandas as pd
import pytest

from jaxattn.lab.bisection import threshold
from jaxattn.lab.figures import style
from jaxattn.lab.figures.diagram import PhaseDiagram


@pytest.fixture
def planted(rng):
    """A diagram with thresholds of about √x for three x, one of them infinite."""

    def make(columns=(16, 64, "inf")):
        values, frames, rows = np.geomspace(1, 100, 33).tolist(), [], []
        for k, x in enumerate(columns):
            own = 4 * 2**k * np.exp(0.1 * rng.normal(size=8))
            y, seed = (part.ravel() for part in np.meshgrid(values, range(8)))
            frames.append(
                pd.DataFrame({"x": x, "y": y, "seed": seed, "value": 0.0, "crossed": y >= own[seed]})
            )
            found = threshold({k: int((own <= y).sum()) for k, y in enumerate(values)}, 8, values)
            rows.append({"x": x, **found, "seeds": 8, "missing": 0, "turned_back": 0})
        outcomes = pd.concat(frames, ignore_index=True)
        return PhaseDiagram("model.dim", "phases.embed.step_size", "loss ≥ 1", outcomes, pd.DataFrame(rows))

    return make


def test_figure_draws_the_theory_curve_and_the_measured_thresholds(planted):
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
def test_infinite_axis_value_is_drawn_one_step_after_the_last_finite_value(planted, columns, places):
    (dots,) = planted(columns).figure().figure.axes[0].containers[0][0:1]
    assert dots.get_xdata().tolist() == places


def test_theory_curve_accepts_a_text_axis_and_rejects_invalid_values(planted):
    diagram = planted(("sgd", "adam"))
    (curve,) = diagram.figure({"adam": 3.0}).figure.axes[0].get_lines()[-1:]
    assert curve.get_ydata().tolist() == [3.0]
    with pytest.raises(ValueError, match="x = 'lion' is not plotted"):
        diagram.figure({"lion": 1.0})
    with pytest.raises(ValueError, match="are not numbers"):
        diagram.figure(lambda x: 1.0)


def test_repr_of_diagram_is_one_line(planted):
    text = repr(planted())
    assert text.startswith("PhaseDiagram(phases.embed.step_size at which loss ≥ 1, by model.dim: 16: ")
    assert "∞: " in text
    assert "<table" in planted()._repr_html_()
