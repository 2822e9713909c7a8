"""Figures drawn by user-defined functions."""

import dataclasses
import json
import shutil

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

import jaxattn as ja
from jaxattn.lab.cli import console
from jaxattn.lab.figures.draw import draw_all
from jaxattn.lab.figures.rendered import Picture, RenderedFigure
from jaxattn.lab.pages import report
from jaxattn.lab.results.read import verify
from jaxattn.lab.storage.files import digest, sealed

KIND = "lab.figures:losses"
FIGURES = ({"kind": "top_tokens", "number": 5}, {"kind": KIND, "metric": "loss", "phase": None})


def losses(results, metric="loss"):
    """Every seed's last loss.

    More words.
    """
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot(results.records.loc[results.records["metric"] == metric, "value"].tail(5))
    return figure


def broken(results, metric="loss"):
    raise ZeroDivisionError("no loss")


def misspelt(results, metric="loss"):
    """Draw a title with an invalid formula."""
    figure = Figure(figsize=(2, 1))
    figure.subplots().set_title("cost $5^$")
    return figure


@pytest.fixture
def folder(write, tmp_path):
    return write(tmp_path / "run", vocab_size=50, seeds=1, figures=FIGURES)


def test_matplotlib_figure_is_named_after_its_function(results):
    drawn = results["text"].figure(losses, metric="p_norm")
    assert (drawn.name, drawn.title, drawn.caption) == ("losses", "Losses", "Every seed's last loss.")
    assert drawn._repr_png_().startswith(b"\x89PNG")
    own = results["text"].figure(lambda results: RenderedFigure("a/b", "A", "B", losses(results)))
    assert own.name == "a-b"
    with pytest.raises(ja.InputError, match="figure broken_too: returned int; return a matplotlib"):
        results["text"].figure(broken_too)


def test_invalid_formula_fails_only_its_figure(write, tmp_path):
    folder = write(tmp_path / "run", vocab_size=50, seeds=1, figures=FIGURES)
    drawn, (problem,) = draw_all(ja.load(folder), {KIND: misspelt})
    assert [each.name for each in drawn] == ["top_tokens_joint"]
    assert problem.line.startswith(f"figures[1] ({KIND}) could not be drawn: ValueError: ")
    assert "\n" not in problem.line


def test_matplotlibrc_does_not_change_custom_figures(results):
    expected = results["text"].figure(losses)._repr_png_()
    with matplotlib.rc_context({"lines.linewidth": 9, "text.usetex": True}):
        assert results["text"].figure(losses)._repr_png_() == expected


class Losses(ja.Figure):
    """Every seed's last number."""

    metric: str = "loss"

    def __call__(self, results):
        return losses(results, self.metric)


def test_figure_class_uses_its_settings(results):
    drawn = results["text"].figure(Losses, metric="p_norm")
    assert (drawn.name, drawn.caption) == ("Losses", "Every seed's last number.")
    by_function = results["text"].figure(losses, metric="p_norm")
    assert drawn._repr_png_() == by_function._repr_png_()


def broken_too(results):
    return 3


def test_figure_options_may_be_lists(results):
    drawn = results["dims"].figure("curves", metrics=["loss"], cells=[0, 1])
    assert "2 of 4 cells" in drawn.caption
    with pytest.raises(ja.InputError, match=r"figure.kind: unknown 'lab:losses'; known: against"):
        results["dims"].figure("lab:losses")


@pytest.mark.more
def test_later_reports_show_the_custom_figures_of_a_run(folder, tmp_path):
    first = report.write_report(folder, {KIND: losses})
    assert not first.problems
    words = json.loads((folder / "figures" / "drawn.json").read_text())["own"]
    assert words == [{"index": 1, "name": "losses", "title": "Losses", "caption": "Every seed's last loss."}]
    image = (folder / "figures" / "losses.svg").read_bytes()
    page = (folder / "report.html").read_text()
    again = report.write_report(shutil.copytree(folder, tmp_path / "again"))
    assert not again.problems
    assert (
        again.page.read_text().count("This is the figure of the run: reading results never executes code")
        == 1
    )
    once = again.page.read_bytes()
    assert report.write_report(again.page.parent).page.read_bytes() == once
    text = again.page.read_text()
    assert text.count("<img ") == page.count("<img ") == 2
    assert page[page.index("<figure>") : page.index("</figure>")] in text
    assert (again.page.parent / "figures" / "losses.svg").read_bytes() == image
    image = bytearray(image)
    image[-20] ^= 1
    (folder / "figures" / "losses.svg").write_bytes(image)
    assert "could not be drawn: not drawn by the run" in report.write_report(folder).problems[0].line


def test_custom_figure_whose_file_is_missing_is_omitted(folder):
    drawn, problems = draw_all(ja.load(folder))
    assert [each.name for each in drawn] == ["top_tokens_joint"]
    assert "could not be drawn: not drawn by the run" in problems[0].line


def forge(folder, name, sha256):
    """Write the caption of a user-defined figure, and a checksum of its file, into a folder."""
    (folder / "figures").mkdir(exist_ok=True)
    entry = {"index": 1, "name": name, "title": "", "caption": ""}
    words = {"own": [entry], "sha256": {f"figures/{name}.svg": sha256}}
    (folder / "figures" / "drawn.json").write_bytes(sealed(words))


def test_figure_names_cannot_leave_the_folder(folder):
    (folder / "secret.svg").write_bytes(b"\x89PNG secret")
    forge(folder, "../secret", digest(b"\x89PNG secret"))
    assert not any(isinstance(each, Picture) for each in draw_all(ja.load(folder))[0])


def test_an_exception_fails_only_its_figure(folder):
    drawn, problems = draw_all(ja.load(folder), {KIND: broken})
    assert len(drawn) == 1
    (problem,) = problems
    assert problem.line == f"figures[1] ({KIND}) could not be drawn: ZeroDivisionError: no loss"
    assert [line.strip() for line in problem.trace.splitlines()] == [
        "Traceback (in your code):",
        f'File "{__file__}", line {broken.__code__.co_firstlineno + 1}, in broken',
        'raise ZeroDivisionError("no loss")',
        "ZeroDivisionError: no loss",
    ]
    # A wrong signature is not an error inside user code.
    _, (problem,) = draw_all(ja.load(folder), {KIND: lambda results: losses(results)})
    assert "TypeError" in problem.line
    assert problem.trace == ""


def test_traceback_of_a_figure_follows_its_error_line(folder, capsys):
    console.print_written(report.write_report(folder, {KIND: broken}))
    out, error = capsys.readouterr()
    first, *trace = error.splitlines()
    assert first == f"jaxattn: figures[1] ({KIND}) could not be drawn: ZeroDivisionError: no loss"
    assert trace[0] == "Traceback (in your code):"
    assert "report.html" in out
    assert "Traceback" not in (folder / "report.html").read_text()


def test_labels_from_a_probe_take_precedence_over_built_in_labels(results):
    run = results["text"]
    named = dataclasses.replace(run, manifest=dict(run.manifest) | {"labels": {"p_norm": "size of p"}})
    assert named.label("p_norm") == "size of p"
    assert named.label("loss") == run.label("loss") == "loss"
    assert run.label("p_norm") == r"$\Vert p\Vert$"
    drawn = named.figure("curves", metrics=("p_norm",))
    assert [ax.get_title(loc="left") for ax in drawn.figure.axes] == ["size of p"]


def test_figure_behind_a_symlink_is_not_shown_even_with_a_matching_checksum(folder, tmp_path):
    (tmp_path / "secret.svg").write_bytes(b"\x89PNG secret")
    (folder / "figures").mkdir()
    (folder / "figures" / "secret.svg").symlink_to(tmp_path / "secret.svg")
    for sha256 in (None, digest(b"\x89PNG secret")):
        forge(folder, "secret", sha256)
        assert not any(isinstance(each, Picture) for each in draw_all(ja.load(folder))[0])


def test_report_is_not_written_outside_its_folder(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (folder / "figures").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ja.InputError, match=r"figures: a link that leads out of"):
        report.write_report(folder)
    assert not list((tmp_path / "elsewhere").iterdir())


STRANGE = [
    *(sealed(content) for content in ({}, {"sha256": []}, {"sha256": {"a": None}, "own": [3]})),
    *(b"{", b"[]", b"[3]", b'[{"index": "x"}]', b'{"index": 1}'),
]


@pytest.mark.parametrize("content", STRANGE)
def test_invalid_captions_are_reported_as_damage(folder, content):
    (folder / "figures").mkdir()
    (folder / "figures" / "drawn.json").write_bytes(content)
    assert "drawn.json: damaged (" in verify(folder)[-1]
    assert len(draw_all(ja.load(folder))[0]) == 1


WRONG = [
    {"kind": "curves", "metrics": 3},
    {"kind": "curves", "cells": ["x"]},
    {"kind": "top_tokens", "number": "many"},
    {"kind": "top_tokens", "number": 10**9},
    {"kind": "importance", "cell": "first"},
    {"kind": "convergence", "expected": [1]},
]


@pytest.mark.parametrize("spec", WRONG, ids=str)
def test_wrong_option_type_raises_a_one_line_error(results, spec):
    option = next(key for key in spec if key != "kind")
    with pytest.raises(ja.InputError, match=rf"figure\.{option}: Expected .*; change the value"):
        results["text"].figure(**spec)


def test_options_accept_numpy_scalars_and_arrays(results):
    assert "2 of 4 cells" in results["dims"].figure("curves", cells=np.arange(2)).caption
    assert results["text"].figure("top_tokens", number=np.int64(3))


def test_curves_can_show_individual_seeds_and_reference_levels(results):
    run = results["dims"]
    lines = len(run.records.query("phase == 'joint'")[["cell", "seed"]].drop_duplicates())
    figure = run.figure("curves", metrics=["loss"], phase="joint", each_seed=True, levels=[0.1, 0.2])
    (axes,) = figure.figure.get_axes()
    assert len(axes.lines) == lines + 2
    assert "Dotted lines mark known values." in figure.caption
