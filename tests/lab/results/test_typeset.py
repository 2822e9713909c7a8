"""Typeset text of pages: minus signs and line breaks, but unchanged code, data and names."""

import pytest

from jaxattn.lab.results.typeset import breakable, coded, marked, typeset


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("-0.5 ± 0.05", "−0.5~±~0.05"),
        ("6.36e-5 [5.86e-5, 6.91e-5]", "6.36e−5 [5.86e−5,~6.91e−5]"),
        ("E·v, -0.95 to 0.89", "E·v, −0.95 to 0.89"),
        ("1 - cos ≤ 1e-9 at ‖p‖ = 1e6", "1 − cos ≤~1e−9 at ‖p‖~=~1e6"),
        ("d^(-1/2), e^(-t), -α, p - q", "d^(−1/2), e^(−t), −α, p − q"),
        ("V = 100, n = 5", "V~=~100, n~=~5"),
        ("5 s, 95 %, 6 seeds", "5~s, 95~%, 6~seeds"),
        ("-", "–"),
        ("max-margin, Figures 1-3, L4.4-4.5", "max-margin, Figures 1-3, L4.4-4.5"),
        ("2026-11-26, fig1_imdb-2.png, --only", "2026-11-26, fig1_imdb-2.png, --only"),
    ],
)
def test_numbers_are_typeset_with_minus_signs_and_no_break_spaces(given, expected):
    assert typeset(given).replace("\xa0", "~") == expected


def test_code_is_not_typeset():
    text = "the power -1/2, by `jaxattn run --set x=-1 -1`"
    assert coded(text) == "the power −1/2, by <code>jaxattn run --set x=-1 -1</code>"
    assert marked(text) == "the power −1/2, by `jaxattn run --set x=-1 -1`"
    assert marked("a ` and -1") == "a ` and -1"


def test_long_names_may_break_and_html_is_escaped():
    assert breakable("spearman_Ev_tokens & -1") == "spearman_<wbr>Ev_<wbr>tokens &amp; −1"
