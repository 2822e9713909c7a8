"""Style of figures, independent of the user's settings, and legends that fit the figure."""

import matplotlib
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from jaxattn.lab.figures.style import FIGURE_WIDTH, SIZE, legend_below, png, style


@pytest.mark.parametrize(("length", "number"), [(2, 12), (12, 8), (30, 7)])
def test_legend_below_fits_figure_width(length, number):
    with style():
        figure = Figure(figsize=(FIGURE_WIDTH, 2.5), layout="constrained")
        ax = figure.subplots()
        before = figure.get_figheight()
        lines = [ax.plot([0, 1], label=f"{k}{'n' * (length - 1)}"[:length])[0] for k in range(number)]
        legend_below(figure, lines)
        figure.draw_without_rendering()
    (legend,) = figure.legends
    box, whole = legend.get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0
    assert box.x1 <= whole.x1
    # The height of the axes changes by less than half a line, 0.095 inches.
    added = figure.get_figheight() - before
    assert abs(box.height / figure.dpi - added) < 0.095


def test_matplotlibrc_does_not_change_figures():
    def drawn():
        with style():
            figure = Figure(figsize=(2, 1))
            figure.subplots().plot([0, 1], label="a")
        return png(figure)

    expected = drawn()
    users = {"text.usetex": True, "lines.linestyle": ":", "savefig.bbox": "tight", "figure.dpi": 30}
    with matplotlib.rc_context(users):
        assert drawn() == expected
        assert matplotlib.rcParams["text.usetex"]


def test_all_text_in_a_figure_has_one_font_size():
    with style():
        figure = Figure(figsize=(FIGURE_WIDTH, 2.5), layout="constrained")
        ax = figure.subplots()
        ax.plot([1, 2], [-1, 1], label="a")
        ax.set(xlabel="x", ylabel="y", title="t")
        ax.legend(title="legend")
        ax.text(1, 0, "inside")
        figure.suptitle("above")
        legend_below(figure, ax.lines)
        figure.draw_without_rendering()
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    assert {text.get_fontsize() for text in texts} == {SIZE}
    # Ticks use minus signs, not hyphens.
    assert any(text.get_text().startswith("−") for text in texts)
    assert not any(text.get_text().startswith("-") for text in texts)
