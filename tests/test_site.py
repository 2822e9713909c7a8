"""What the site makes of docstrings and links."""

import html
import importlib.util
import inspect
import re
import sys
from pathlib import Path

import msgspec
import pytest
from fontTools.ttLib import TTFont
from PIL import Image

import jaxattn as ja

EXTENSIONS = Path(__file__).parents[1] / "docs" / "_extensions"


def extension(name):
    spec = importlib.util.spec_from_file_location(f"site_{name}", EXTENSIONS / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


docstrings, links, names = extension("docstrings"), extension("links"), extension("names")
published, tables, assets = extension("published"), extension("tables"), extension("assets")
with Image.open(EXTENSIONS.parent / "images" / "quickstart.png") as figure:
    SHOWN = figure.width // 2


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("p·E_s' ≥ 1", r"p\cdot E_{s'} \ge  1"),
        ("1 - √(1 - x)", r"1 - \sqrt{1 - x}"),
        ("y_s ‖v‖²/√r_eff", r"y_{s} \Vert v\Vert ^{2}/\sqrt{r_{\mathrm{eff}}}"),
        ("√12 x + √d_k", r"\sqrt{12} x + \sqrt{d_{k}}"),
        ("e^(-m (a + b)) for all X", r"e^{-m (a + b)} \text{ for all } X"),
        ("dp/dt = -∂L/∂p", r"dp /dt  = -\partial L/\partial p"),
        ("v_mm = argmin ‖v‖²", r"v_{\mathrm{mm}} = \operatorname{argmin}  \Vert v\Vert ^{2}"),
        ("X ∖ S_X,  duality_gap", r"X ∖ S_{X}, \quad \text{ duality gap }"),
    ],
)
def test_formulas_are_converted_to_latex(line, expected):
    assert docstrings.latex(line) == expected


def test_formulas_in_docstrings_are_typeset_as_mathematics():
    lines = ["Solve |x| = p_*, see `a*b`:", "", "    x = Σ_s p_s", "", "Args:", "    x: of p_*."]
    made = docstrings.written(lines)
    assert made[0] == r"Solve \|x\| = p\_\*, see `a*b`:"
    assert made[2] == ".. math::"
    assert r"\sum _{s} p_{s}" in made[4]
    assert made[-1] == r"    x: of p\_\*."


def test_code_examples_in_docstrings_are_preserved():
    made = docstrings.written(["As in", "", "    class Pairs(ja.Dataset):", "        left: jax.Array"])
    assert "::" in made
    assert made[-2] == "        left: jax.Array"


def test_examples_in_docstrings_are_not_escaped():
    made = docstrings.written(["Example:", "    >>> f(*x_)", "    1|2", "", "Args:", "    x: of p_*."])
    assert made[1:3] == ["    >>> f(*x_)", "    1|2"]
    assert made[-1] == r"    x: of p\_\*."


@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        ("(dim: ~typing.Annotated[int, msgspec.Meta(ge=1, le=9)] = 2)", "(dim: int = 2)"),
        ("(x: Annotated[tuple[int, Annotated[str, Meta(ge=0)]], Meta(ge=1)])", "(x: tuple[int, str])"),
        ("(x: float | Annotated[float, 'static'])", "(x: float | float)"),
        ("(x: int)", "(x: int)"),
    ],
)
def test_signatures_show_types_without_ranges(signature, expected):
    assert docstrings._signature(None, "class", "", None, None, signature, None)[0] == expected


def test_signatures_show_the_values_of_constants():
    made = docstrings.with_values(
        "(x=SIGNS, until_log_loss: float = _UNTIL_LOG_LOSS, p: str = OPEN)", ja.dynamics.full_flow
    )
    assert made == "(x=SIGNS, until_log_loss: float = -27.631021115928547, p: str = OPEN)"


def test_settings_class_docstrings_list_all_settings_with_ranges():
    class Own(ja.data.Assumption1, frozen=True, kw_only=True):
        """Data.

        Attributes:
            shift: a shift that is explained
                in two lines.
        """

        shift: ja.Fraction = 0.5

    made = docstrings.with_settings(inspect.cleandoc(Own.__doc__).splitlines(), Own)
    assert "        in two lines (at least 0 and at most 1)." in made
    assert "    sequences: n, number of sequences (at least 1)." in made
    assert made.count("Attributes:") == 1
    without = docstrings.with_settings(["Data."], ja.data.Assumption1)
    assert without[1:3] == ["", "Attributes:"]
    assert {line.split(":")[0].strip() for line in without[3:]} == {
        field.name for field in msgspec.structs.fields(ja.data.Assumption1)
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[a](../../results/published/paper/index.html#xor)",
            "<a href='../published/paper/index.html#xor'>a</a>",
        ),
        (
            "[`a`](../../results/published/cover/runs.csv)",
            "<a href='../published/cover/runs.csv'><code>a</code></a>",
        ),
        ("[`[[1]]`](../../LICENSE)", "[`[[1]]`](../../LICENSE)"),
        ("[a](../notes/joint_flow.md)", "[a](../notes/joint_flow.md)"),
        ("[a](../../sweeps/own/lab.py)", "[a](../../sweeps/own/lab.py)"),
        ("[a](../../CHANGELOG.md)", "{download}`a <../../CHANGELOG.md>`"),
        ("[a](../reference/metrics.md#fit)", "[a](../reference/metrics.md#fit)"),
        ("[a](https://arxiv.org/abs/2505.17282)", "[a](https://arxiv.org/abs/2505.17282)"),
        ("![a](../images/quickstart.png)", f"![a](../images/quickstart.png){{width={SHOWN}px}}"),
    ],
)
def test_links_refer_to_pages_of_the_site(text, expected):
    page = links.DOCS / "explanation" / "limits.md"
    assert links.LINK.sub(lambda link: links.rewritten(link, page.parent, page), text) == expected


def test_the_address_of_the_repository_is_in_commands_once_it_exists():
    text = (links.DOCS / "index.md").read_text(encoding="utf-8")
    assert links.with_address(text, "") == text
    assert "git clone https://example.org/a jaxattn && cd" in links.with_address(
        text, "https://example.org/a"
    )


@pytest.mark.parametrize("target", ["../../sweeps/own", "../reference/no_page.md"])
def test_links_to_folders_or_missing_files_are_rejected(target):
    page = links.DOCS / "explanation" / "limits.md"
    with pytest.raises(ValueError, match=r"explanation/limits\.md: \[a\].*leads to no file"):
        links.rewritten(links.LINK.fullmatch(f"[a]({target})"), page.parent, page)


FRAME = f"<html><title>{published.TITLE}</title><main>{published.BODY}</main></html>"


@pytest.mark.parametrize("name", ["claims/index.html", "claims/T4.3.html", "quickstart/report.html"])
def test_published_pages_are_placed_in_the_theme_of_the_site(name):
    page = (published.PUBLISHED / name).read_text(encoding="utf-8")
    made = published.framed(FRAME, page, "0.3.0")
    assert made.startswith("<html><title>")
    # Images may have titles of their own.
    outside = re.sub(r"(?s)<svg.*?</svg>", "", made)
    assert (outside.count("<body"), outside.count("<title")) == (0, 1)
    (heading,) = re.findall(r"<h1>(.*?)</h1>", page)
    assert f"<h1>{heading}</h1>" in made
    # Published results are in published/BOOK of the site.
    targets = set(re.findall(r'href="\.\./\.\./([^"]*)"', made))
    assert targets == ({"reference/published.html"} if published.WAY_BACK in page else set())
    assert (links.DOCS / "reference" / "published.md").is_file()


def test_results_of_an_earlier_version_are_announced():
    page = "<!DOCTYPE html><title>a</title><body><dt>made by</dt><dd>jaxattn 0.2.0</dd></body>"
    assert "computed with jaxattn 0.2.0; this site describes version 0.3.0" in published.framed(
        FRAME, page, "0.3.0"
    )
    assert 'class="older"' not in published.framed(FRAME, page, "0.2.0")
    report = (published.PUBLISHED / "imdb_margin" / "report.html").read_text(encoding="utf-8")
    assert published.version(report) == "0.1.0"
    with pytest.raises(ValueError, match="needs a title and a body"):
        published.framed(FRAME, "<p>part</p>", "0.3.0")


def test_styles_of_published_pages_apply_to_the_page_alone():
    style = """:root { --ink: #000; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #fff; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; }
h1 { margin: 0; }
@media (max-width: 36rem) {
  body { padding: 1rem; }
  dl { gap: 0; }
}
@page { margin: 1cm; }
"""
    made = published.scoped(style)
    assert made.startswith(".published {")
    assert made.count("{") == made.count("}")
    rules = re.findall(r"([^{}]+) \{", made)
    assert [rule.strip() for rule in rules] == [".published", "h1", "@media (max-width: 36rem)", "dl"]


def test_cells_of_wide_tables_know_their_heading():
    head = "".join(f'<th class="head"><p>{name}</p></th>' for name in ("claim", 'a "b"', "<code>c</code>"))
    table = f'<table class="table">\n<thead>\n<tr>{head}</tr>\n</thead>\n<tbody></tbody></table>'
    made = tables.with_headings(table)
    (style,) = re.findall(r'<table class="table cards" style="([^"]*)">', made)
    assert html.unescape(style) == r'--h1:"claim";--h2:"a \"b\"";--h3:"c"'
    narrow = table.replace('<th class="head"><p>claim</p></th>', "")
    assert tables.with_headings(narrow) == narrow


def test_pages_do_not_load_the_script_of_all_icons():
    page = (
        '<script defer src="_static/scripts/fontawesome.js?digest=1"></script>\n<script src="a.js"></script>'
    )
    assert assets.without_icon_script(page) == '<script src="a.js"></script>'
    with pytest.raises(ValueError, match="no longer loads"):
        assets.without_icon_script("<p></p>")


def test_mathematics_font_has_the_glyphs_of_all_formulas_and_a_table_of_sizes():
    """Letters of formulas are drawn as italic letters of the mathematical alphabets."""
    font = TTFont(EXTENSIONS.parent / "_static" / "fonts" / "mathematics.woff")
    assert "MATH" in font
    assert "STIX" not in str(font["name"].getDebugName(1))
    needed = set("0123456789+−=<>≤≥≠∈∑∫∂∇‖·→∞±×√∖⊗αβγδηθλμρσπΦℓ𝒯ℝ𝑝𝐸𝑣𝑋′")
    assert {sign for sign in needed if ord(sign) not in font.getBestCmap()} == set()


KNOWN = ("jaxattn.load", "jaxattn.theory.max_margin", "jaxattn.theory.loss", "jaxattn.data.Corpus",
         "jaxattn.Model", "jaxattn.base.Model", "jaxattn.lab.probes.Norms")  # fmt: skip


@pytest.mark.parametrize(
    ("text", "module", "expected"),
    [
        ("ja.theory.max_margin", None, "jaxattn.theory.max_margin"),
        ("jaxattn.theory.max_margin", None, "jaxattn.theory.max_margin"),
        ('ja.load("results/night-*")', None, "jaxattn.load"),
        ("ja.load[0]", None, "jaxattn.load"),
        ("ja.probes.Norms", None, "jaxattn.lab.probes.Norms"),
        ("ja.data.Norms", None, "jaxattn.lab.probes.Norms"),
        ("ja.theory", None, None),
        ("max_margin", None, None),
        ("max_margin", "jaxattn.theory", "jaxattn.theory.max_margin"),
        ("max_margin", "jaxattn.data", None),
        ("Corpus", "jaxattn.theory", "jaxattn.data.Corpus"),
        ("Model", "jaxattn.theory", "jaxattn.Model"),
        ("loss", "jaxattn.theory", None),
        ("max_margin = 1", "jaxattn.theory", None),
        ("1e-9", "jaxattn.theory", None),
    ],
)
def test_code_in_prose_links_to_its_entry(text, module, expected):
    assert names.target(text, KNOWN, module, own={"loss"}) == expected


@pytest.mark.parametrize(("text", "missing"), [("ja.thoery.margin", True), ("margin", False)])
def test_misspelt_names_of_the_package_fail_the_build(text, missing):
    assert names.is_missing(text, names.target(text, KNOWN)) is missing
