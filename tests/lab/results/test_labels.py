import numpy as np
import pytest
from matplotlib.figure import Figure

from jaxattn.lab.figures import style
from jaxattn.lab.results.labels import (
    LONGEST_LABEL,
    axis_label,
    brief,
    format_number,
    formula,
    grow_by_factors,
    metric_label,
    ranges_text,
    setting,
    settings_label,
    short_name,
    tick_label,
    with_interval,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.87312, "0.873"),
        (0.9, "0.900"),
        (-18.94, "-18.9"),
        (1234.5, "1234"),
        (3.2e-5, "3.20e-5"),
        (-7.04e12, "-7.04e12"),
        (np.nan, "–"),
    ],
)
def test_numbers_have_three_significant_digits(value, text):
    assert format_number(value) == text


def test_interval_width_determines_the_number_of_digits():
    assert with_interval(-0.4992, -0.5177, -0.4807) == "-0.499 [-0.518, -0.481]"
    assert with_interval(2.0, 2.0, 2.0) == "2.00 [2.00, 2.00]"


def test_brief_writes_round_numbers_compactly():
    assert [brief(x) for x in (1e-9, 1e6, 200.0)] == ["1e-9", "1e6", "200"]


def test_missing_axis_values_are_formatted_as_empty_strings():
    assert [setting(x) for x in (0.1, 2000.0, "inf", "SGD", np.nan, None)] == [
        "0.1",
        "2000",
        "∞",
        "SGD",
        "",
        "",
    ]


def test_consecutive_integers_are_formatted_as_ranges():
    assert [ranges_text(x) for x in ([3], [0, 1], [2, 3, 4], [2, 5])] == ["3", "0 to 1", "2 to 4", "2, 5"]


def test_log_spaced_values_are_detected():
    assert grow_by_factors([1, 10, 100])
    assert not grow_by_factors([1, 2, 3])
    assert not grow_by_factors([0, 1, 10])


@pytest.mark.parametrize("name", ["$5 vs $10", "x^$2^$", "50% off", "one $", "\\$3 and $4", "a$b$c$d$e"])
def test_literal_escapes_dollar_signs(name):
    def drawn(text, **look):
        figure = Figure(figsize=(2, 0.5))
        figure.text(0, 0, text, **look)
        return style.png(figure, dpi=50)

    plain = drawn(name, parse_math=False)
    for text in (
        settings_label({"block": name}),
        axis_label(f"data.{name}"),
        tick_label(name),
        metric_label(name, {}),
        formula(name) if name == "x^$2^$" else short_name(name),
    ):
        assert drawn(text) == plain


@pytest.mark.parametrize("label", ["$x$ " * 10**4, "$" * 10**5, "x" * 10**5])
def test_long_labels_are_shortened_without_parsing_their_formulas(label, monkeypatch):
    monkeypatch.setattr("matplotlib.mathtext.MathTextParser.parse", None)
    shown = metric_label("a", {"a": label})
    assert shown.replace("\\$", "$") == label[: LONGEST_LABEL - 1] + "…"
    assert metric_label(label, {}).replace("\\$", "$") == label[: LONGEST_LABEL - 1] + "…"


def test_invalid_formulas_in_labels_are_escaped():
    labels = {"a": r"$\|p\|^2$ of p", "b": "cost $5^$ now", "c": "one $"}
    assert metric_label("a", labels) == r"$\|p\|^2$ of p"
    assert metric_label("b", labels) == r"cost \$5^\$ now"
    assert metric_label("c", labels) == r"one \$"
    assert settings_label({"model.dim": 8, "model.sort": "a$"}) == r"$d$ = 8, sort = a\$"
