"""Generate the reference pages from the code: metrics, texts, keys of sweep files, command line, gallery.

    python docs/pages.py

writes them to docs/reference/.
"""

import inspect
import json
import math
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxattn.lab import kinds

sys.path += [str(Path(__file__).parent), str(Path(__file__).parent / "_extensions")]

import msgspec
import tomli_w
from command_line import command_line
from docstrings import latex

from jaxattn.base import Measurement
from jaxattn.core.scales import NOT_NEGATIVE, Scale
from jaxattn.core.settings import markdown_table, meanings, summary_line, written
from jaxattn.lab.pages.definitions import definition
from jaxattn.lab.probes import Accuracy, Fit, Importance, OneStepError, Selected
from jaxattn.lab.probes.standard import LOSSES, Probes
from jaxattn.lab.study.concepts import CONCEPTS
from jaxattn.lab.study.definition import Tables
from jaxattn.lab.study.registry import fields_of

PHASES, PROBES = kinds.classes(kinds.PHASES), kinds.classes(kinds.PROBES)
READERS = kinds.classes(kinds.READERS)
ROOT = Path(__file__).parents[1]
WIDTH = 110

STANDARD: dict[str, type[Measurement]] = {
    "in every study": Fit,
    "in every study whose targets are classes": Accuracy,
    "in every study whose model has scores and values of tokens": Importance,
    "in every study whose model attends to tokens": Selected,
    "after one step on E": OneStepError,
}
PROBES_SETTINGS = """\
The metrics `spearman_..._tokens` are correlations across tokens with at least `min_count` occurrences in the
training split. Use a lower `min_count` for a small corpus. The metrics `spearman_..._bins` are correlations
across the means of `bins` equal bins of the posterior difference between `low` and `high`. For the absolute
posterior difference, the bins start at 0. A token is important if it has at least `min_count` occurrences and
an absolute posterior difference of at least `important`.

Posterior differences and fractions of sequences are single divisions of integers, so equal fractions tie in
rankings. A fraction exactly at `important`, at a level of a phase diagram or at a criterion reaches it, and a
posterior difference exactly on the edge of two bins is in the upper one. The tolerance for rounding errors in
these comparisons is 16 machine epsilons, `jaxattn.core.fractions.ROUNDING`."""


def metrics() -> str:
    """Return the page of metrics, with a description of each probe and a row for each metric."""
    sections = [
        "# Metrics",
        "Tables, figures and `aggregate --metrics` use these names. See "
        "[Intervals](intervals.md) for means over seeds. Intervals are clipped to the range of a metric.\n"
        "A custom loss has no range unless it declares one.",
        "## Settings: `[probes]`",
        PROBES_SETTINGS,
        _settings(),
        "## Standard probes",
        *(_section(probe, when) for when, probe in STANDARD.items()),
        "## Further probes",
        "A study uses these probes only if the list `own` of `[probes]` contains their names.",
        *(_section(probe, f"`{name}`") for name, probe in PROBES.items()),
        "## Metrics of flows",
        _table(
            {name: label for phase in PHASES.values() for name, label in phase.labels.items()},
            {
                name: scale
                for phase in PHASES.values()
                for base in phase.__mro__
                for name, scale in _scales(base)
            },
        ),
    ]
    return "\n\n".join(sections) + "\n"


def _section(probe: Any, when: str) -> str:
    about = _typeset(inspect.cleandoc(probe.__doc__ or "").partition("\n\nAttributes:")[0])
    heading = f"### {probe.__name__}: {when}\n\n{about}"
    scales = dict(_scales(probe)) | (dict.fromkeys(LOSSES, NOT_NEGATIVE) if probe is Fit else {})
    return f"{heading}\n\n{_table(probe.labels, scales)}" if probe.labels else heading


def _scales(kind: Any) -> list[tuple[str, Scale]]:
    return list(getattr(kind, "scales", {}).items())


def _range(scale: Scale) -> str:
    """Return the possible values of a metric in words, and whether its means are geometric."""
    if scale.kind == "yes/no":
        return "0 or 1"
    low, high = (f"{x:g}" for x in (scale.low, scale.high))
    both, above = math.isfinite(scale.low) and math.isfinite(scale.high), math.isfinite(scale.low)
    words = f"{low} to {high}" if both else f"≥ {low}" if above else f"≤ {high}" * math.isfinite(scale.high)
    return ", ".join(filter(None, [words, "geometric mean" * (scale.kind == "log")]))


def _settings() -> str:
    meaning = meanings(Probes)
    rows = [[f"`{field.name}`", written(field.default), meaning[field.name]] for field in fields_of(Probes)]
    return markdown_table(["setting", "default", "meaning"], rows)


def _table(labels: Mapping[str, str], scales: Mapping[str, Scale]) -> str:
    rows = [
        [f"`{name}`", _range(scales.get(name, Scale())), definition(name) or label]
        for name, label in labels.items()
    ]
    return markdown_table(["metric", "range", "meaning"], rows)


OPENING = """# Texts

```toml
[data]                                            # AG News as CSV: class, title, description
kind = "csv"
path = "train.csv"
test_path = "test.csv"
columns = ["label", "title", "description"]
text = ["title", "description"]
labels = [1, 2, 3, 4]
class_names = ["world", "sports", "business", "technology"]
validation = 0.1
min_count = 5
```

`jaxattn data SWEEP` prints a summary of the corpora without running the study. `--set data.columns=null`
restores the default of a setting. The settings `class_names`, `path`, `test_path` and `data_dir` do not
affect the results, so a run can be resumed after they have changed."""

WORDS = """## Words

Texts are normalised to Unicode NFC and converted to lower case. A word is a sequence of letters, digits and
inner apostrophes. `<br />` tags and escaped line breaks separate words. A null text is read as an empty text.
A null, NaN or empty label is a missing label, and `empty = "drop"` drops its row. The names "nan", "NA" and
"null" in a text file are ordinary labels. Files may begin with a byte order mark. Compressed files must be
decompressed first. Texts without spaces between words, as in Chinese, Japanese and Thai, must be segmented
first. Otherwise a note reports that their words are whole phrases."""

HELD_OUT = """## Held-out texts

The vocabulary is built from the training rows without the validation rows. With a validation split, every
measured step records `validation_loss` and `validation_accuracy`. The metric
`test_accuracy_best_on_validation` is the test accuracy at the step with the best validation accuracy so far
in the phase. The metric `test_accuracy_best_on_test` is biased upwards, because its step is selected on the
test split itself."""


def texts() -> str:
    """Return the page of texts: the kinds, the settings of some kinds, and those of all kinds."""
    rows = [[f"`{kind}`", summary_line(target)] for kind, target in READERS.items()]
    settings: dict[tuple[str, str, str], list[str]] = {}
    for kind, target in READERS.items():
        meaning = meanings(target)
        for field in fields_of(target):
            settings.setdefault((field.name, written(field.default), meaning[field.name]), []).append(kind)
    several = [row for row, own in settings.items() if len(own) < len(READERS)]
    of_some = [
        [f"`{row[0]}`", ", ".join(settings[row]), *row[1:]]
        for row in sorted(several, key=lambda row: [name for name, *_ in several].index(row[0]))
    ]
    of_every = [[f"`{row[0]}`", *row[1:]] for row in settings if row not in several]
    sections = [
        OPENING,
        "## Kinds",
        markdown_table(["kind", "input"], rows),
        "## Settings of the input",
        markdown_table(["setting", "kinds", "default", "meaning"], of_some),
        "## Settings of the corpus",
        markdown_table(["setting", "default", "meaning"], of_every),
        WORDS,
        HELD_OUT,
    ]
    return "\n\n".join(sections) + "\n"


KEYS = """# Keys of a sweep file

This page lists all keys of a sweep file. `jaxattn schema` prints the keys as a JSON schema for editors. See
[Write a sweep file](../howto/sweep_file.md) for an example, [Texts](texts.md) for labelled texts, and
[Metrics](metrics.md) for `[probes]`. A `kind` can also refer to custom code, as in `kind = "mine.py:NAME"`.
The keys are then the keyword arguments of the custom class or function."""

PROBES_ELSEWHERE = "See [Metrics](metrics.md#further-probes) for a description of each probe."

TOP = {
    "name": "name of the study and of its folder in `results/`.",
    "data": "the data; see `[data]` below.",
    "model": "the model; see `[model]` below. `init` sets initial values.",
    "phases": "the phases of training, in order; see `[[phases]]` below.",
    "loss": "the loss; see below.",
    "description": "a sentence that is printed in the report.",
    "seeds": 'the number of seeds, a range such as "0:200", or a list of seeds.',
    "hold": "a list of random numbers that every seed takes from seed 0: `data`, `start` or `batches`.",
    "dtype": "floating-point type of parameters and measurements.",
    "chunk": "number of seeds that run together; chosen automatically by default.",
    "probes": "the probes; see [Metrics](metrics.md).",
    "axes": "a table with a list of values for each swept key; the cells are all combinations.",
    "zip": "a table with lists of equal length, whose values vary together.",
    "halton": (
        "quasi-random cells: `points` is their number, and `axes` contains `low`, `high`, `log` and "
        "`integer` for each key."
    ),
    "cells": "an explicit list of cells; each cell is a table of keys and values.",
    "exclude": "tables of keys and values; matching cells are removed from the grid.",
    "blocks": "named variants of the study. A block and its grid are merged into the tables outside.",
    "figures": "figures of the report; see `[[figures]]` below.",
}


def sweep_keys() -> str:
    """Return the page of keys: the top level, then the kinds of data, models, losses, phases and probes."""
    rows = [[f"`{f.encode_name}`", written(_default(f)), TOP[f.name]] for f in msgspec.structs.fields(Tables)]
    rows.append(["`extends`", "none", "path of another sweep file, from which this file inherits all keys."])
    sections = [KEYS, "## Top level", _key_table(rows)]
    for concept in (concept for concept in CONCEPTS if concept.known):
        known = {kind: target for kind, target in concept.known.items() if kind not in READERS}
        sections.append(f"## {concept.name.removeprefix('a ').capitalize()}: {concept.location}")
        tables = {kind: _rows(target) for kind, target in known.items()}
        # Keys that all kinds share are listed once, so that the table of a kind contains only its other keys.
        having = [rows for rows in tables.values() if rows]
        usual = [row for row in having[0] if len(having) > 1 and all(row in rows for rows in having)]
        if usual:
            without = [f"`{kind}`" for kind, rows in tables.items() if not rows]
            but = f", except {' and '.join(without)}" if without else ""
            sections += [f"Keys of every kind{but}:", _key_table(usual)]
        # The page of metrics describes the probes.
        probes = concept.known == PROBES
        if probes:
            without = [f"`{kind}`" for kind, rows in tables.items() if not rows]
            sections.append(f"{PROBES_ELSEWHERE} The following probes have no keys: {', '.join(without)}.")
        for kind, rows in tables.items():
            own = [row for row in rows if row not in usual]
            if own or not probes:
                sections.append(f"### `{kind}`" if probes else f"### `{kind}`\n\n{_summary(known[kind])}")
            sections += [_key_table(own)] if own else []
    return "\n\n".join([*sections, *_figures()]) + "\n"


FIGURES = """## Figures: `[[figures]]`

The keys of a figure are also the arguments of `results.figure(KIND, ...)` in Python. The
[gallery](gallery.md) shows each kind. A figure can also be a
[custom function](../howto/extending.md#a-figure)."""


def _figures() -> list[str]:
    """Return the sections of the kinds of figures, which are functions (results, **options)."""
    sections = [FIGURES]
    for kind, function in kinds.classes(kinds.FIGURES).items():
        about, meaning = inspect.getdoc(function) or "", meanings(function)
        options = list(inspect.signature(function).parameters.values())[1:]
        rows = [[f"`{p.name}`", _default_of(p), meaning[p.name]] for p in options]
        summary = " ".join(about.partition("\n\n")[0].split()).partition("; see `")[0].rstrip(".")
        sections += [f"### `{kind}`\n\n{summary}.", _key_table(rows)]
    return sections


def _default_of(parameter: inspect.Parameter) -> str:
    return "required" if parameter.default is parameter.empty else written(parameter.default)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _rows(target: Any) -> list[list[str]]:
    meaning = meanings(target)
    return [[f"`{f.name}`", written(f.default), meaning[f.name]] for f in fields_of(target)]


def _summary(target: Any) -> str:
    """Return the first sentence of a docstring without its verb, and the formula that follows it."""
    text = inspect.getdoc(target) or ""
    summary, _, rest = text.partition("\n\n")
    formula = rest.partition("\n\n")[0]
    first = re.sub("; see `[a-z0-9_]+`\\.$", ".", " ".join(summary.split()))
    first = re.sub("^(Sample|Compute) (.)", lambda found: found[2].upper(), first)
    return f"{first}\n\n{_typeset(formula)}" if formula.startswith("    ") else first


def _typeset(text: str) -> str:
    """Return a docstring in Markdown, with its indented formulas as mathematics."""
    blocks = re.sub(r"(?m)^    (.+)$", lambda line: f"$$\n{latex(line[1])}\n$$", text)
    return blocks.replace("$$\n$$\n", "$$\n\n$$\n")


def _key_table(rows: list[list[str]]) -> str:
    return markdown_table(["key", "default", "meaning"], rows)


class Shown(NamedTuple):
    """A figure of the gallery.

    Attributes:
        title: its heading.
        study: its sweep file and its folder of published results.
        number: index of the figure in the sweep file.
        file: name of the figure's file.
        said: the caption.
    """

    title: str
    study: str
    number: int
    file: str
    said: str


GALLERY = (
    Shown(
        "What attention learned",
        "imdb_one_layer",
        0,
        "importance_joint",
        "E·v increases with the posterior difference, and E·p is U-shaped, as in the paper's Figure 3.",
    ),
    Shown(
        "Curves of metrics",
        "imdb_one_layer",
        1,
        "curves",
        "Metrics as functions of the training step, with 95 % intervals over seeds.",
    ),
    Shown(
        "Tokens that attention prefers",
        "imdb_one_layer",
        2,
        "top_tokens_joint",
        "The words with the largest E·p, coloured by the class in which they are more frequent.",
    ),
    Shown(
        "One step on E",
        "one_step_law",
        1,
        "one_step_law_cell6",
        "E·v of every token after one step, compared with the prediction of Lemma 4.1.",
    ),
    Shown(
        "A power law",
        "one_step_law",
        0,
        "scaling_one_step_error_model-dim",
        "The error of the one-step law decreases like d^(-1/2). The slope is fitted for each seed.",
    ),
    Shown(
        "A metric against a setting",
        "one_step_law",
        2,
        "against_spearman_Ev_tokens_model-dim",
        "Means over seeds with 95 % intervals. `lines` and `panels` draw the values of further swept keys.",
    ),
    Shown(
        "Convergence to the max-margin direction",
        "margin_convergence",
        0,
        "convergence_one_minus_cosine_p_norm",
        "1 - cos between p and the max-margin direction decreases like 1/‖p‖² until the end of the path.",
    ),
    Shown(
        "Comparison of methods",
        "flow_methods",
        0,
        "convergence_one_minus_cosine_evaluations",
        "1 - cos between p and the max-margin direction, against the number of gradient evaluations.",
    ),
    Shown(
        "A phase diagram",
        "selection_vs_eta0",
        0,
        "diagram_only_relevant_selected_phases-embed-step_size_model-dim",
        "A metric as a function of two keys of the sweep file.",
    ),
)


def _call(function: str, options: list[str]) -> str:
    """Format a call like ruff: on one line if it fits, else all arguments on one line, else one per line."""
    inside = ", ".join(options)
    if len(one := f"{function}({inside})") <= WIDTH:
        return one
    if len(inside) + 4 <= WIDTH:
        return f"{function}(\n    {inside}\n)"
    return "\n".join([f"{function}(", *(f"    {option}," for option in options), ")"])


def gallery() -> str:
    """Return the page of figures, each with the code that draws it."""
    parts = [
        "# Gallery",
        "Each figure is shown with its table in the sweep file, and with the Python code that plots it.\n"
        "Figures are saved as SVG files. A figure can also be a\n"
        "[custom function](../howto/extending.md#a-figure).",
    ]
    for each in GALLERY:
        spec = tomllib.loads((ROOT / "sweeps" / f"{each.study}.toml").read_text(encoding="utf-8"))["figures"][
            each.number
        ]
        asked = "\n".join(["[[figures]]", tomli_w.dumps(spec).strip()])
        options = [json.dumps(spec["kind"])]
        options += [f"{name}={json.dumps(value)}" for name, value in spec.items() if name != "kind"]
        call = _call(f'ja.load("results/{each.study}").figure', options)
        parts += [
            f"## {each.title}",
            each.said,
            f"![{each.title}](../../results/published/{each.study}/figures/{each.file}.png)",
            f"```toml\n{asked}\n```",
            f"```python\n# after jaxattn run sweeps/{each.study}.toml\n{call}\n```",
        ]
    parts += [
        "## Explorer",
        "`ja.explore` builds an interactive figure with a slider along the path of p: the distance to the\n"
        "limit, scores, attention, the phase plane and support pairs. The\n"
        "[start page](../index.md#follow-the-flow) and the notebook\n"
        "[Margin convergence](../../notebooks/margin_convergence.ipynb) show examples. `figure()` returns\n"
        "the HTML element for another page, such as a report.",
        '```python\nja.explore(scores, path, max_margin).write("page.html")\n```',
    ]
    return "\n\n".join(parts) + "\n"


PAGES = {
    "metrics": metrics,
    "texts": texts,
    "sweep_keys": sweep_keys,
    "command_line": command_line,
    "gallery": gallery,
}

if __name__ == "__main__":
    for name, made in PAGES.items():
        (Path(__file__).parent / "reference" / f"{name}.md").write_text(made(), encoding="utf-8")
