"""Generate the reference pages from the code: metrics, texts, keys of sweep files, command line, gallery.

    python docs/pages.py

writes them to docs/reference/.
"""

import inspect
import json
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

sys.path += [str(Path(__file__).parents[1] / "benchmarks"), str(Path(__file__).parent / "_extensions")]

import msgspec
import tomli_w
from bench import beside, read
from docstrings import latex

from jaxattn.base import Measurement
from jaxattn.core.settings import first_line, markdown_table, meanings, written
from jaxattn.lab.cli import commands
from jaxattn.lab.cli.usage import about, options_of
from jaxattn.lab.probes import PROBES, Accuracy, Fit, Importance, OneStepError, Selected
from jaxattn.lab.probes.standard import Probes
from jaxattn.lab.results.labels import OF_PHASES
from jaxattn.lab.study.definition import Tables
from jaxattn.lab.study.registry import CONCEPTS, fields_of
from jaxattn.lab.texts.readers import READERS

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
Correlations named `spearman_..._tokens` are over tokens with at least `min_count` occurrences in the training
split. Set a lower value for a small corpus. Correlations named `spearman_..._bins` are over `bins` equal
intervals of the posterior difference between `low` and `high`, each represented by the mean over its tokens.
For the absolute posterior difference the intervals start at 0. `important_mass`, `important_selected` and
`important_tied` are about important tokens: those with at least `min_count` occurrences and an absolute
posterior difference of at least `important`."""


def metrics() -> str:
    """Return the page of metrics: for each probe its description and a row per metric."""
    sections = [
        "# Metrics",
        "The metrics that a study records, by the names that tables, figures and `aggregate --metrics` use. "
        "`python docs/pages.py` generates this page from the probes. [Intervals](intervals.md) defines means "
        "over seeds and their intervals.",
        "## Settings: `[probes]`",
        PROBES_SETTINGS,
        _settings(),
        "## Standard probes",
        *(_section(probe, when) for when, probe in STANDARD.items()),
        "## Further probes",
        "Each is recorded if its name is in the list `own` of `[probes]`.",
        *(_section(probe, f"`{name}`") for name, probe in PROBES.items()),
        "## Metrics of flows",
        _table(OF_PHASES),
    ]
    return "\n\n".join(sections) + "\n"


def _section(probe: Any, when: str) -> str:
    about = _typeset(inspect.cleandoc(probe.__doc__ or "").partition("\n\nAttributes:")[0])
    heading = f"### {probe.__name__}: {when}\n\n{about}"
    return f"{heading}\n\n{_table(probe.labels)}" if probe.labels else heading


def _settings() -> str:
    meaning = meanings(Probes)
    rows = [[f"`{field.name}`", written(field.default), meaning[field.name]] for field in fields_of(Probes)]
    return markdown_table(["setting", "default", "meaning"], rows)


def _table(labels: Mapping[str, str]) -> str:
    return markdown_table(["metric", "meaning"], [[f"`{name}`", label] for name, label in labels.items()])


OPENING = """# Texts

Settings of `[data]` for labelled texts. `python docs/pages.py` generates this page from the code.

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

`jaxattn data SWEEP` shows the corpora before anything is run. `--set data.columns=null` removes a setting of
the file. `class_names`, `path`, `test_path` and `data_dir` do not change any number, so a run can be resumed
after they have changed."""

WORDS = """## Words

Words consist of lower-case letters, digits and inner apostrophes, in Unicode's normal form NFC. `<br />` tags
and escaped line breaks separate words. A null text is an empty text; a null, NaN or empty label is a missing
label, and `empty = "drop"` ignores its row. Decompress compressed files first."""

HELD_OUT = """## Held-out texts

The vocabulary is built from the training rows without the validation rows. With a validation split, every
measured step records `validation_loss` and `validation_accuracy`, and `test_accuracy_best_on_validation` is
the test accuracy at the step of the phase with the best validation accuracy so far. A step that is selected
on the test split itself, `test_accuracy_best_on_test`, has a test accuracy that is biased upwards."""


def texts() -> str:
    """Return the page of texts: the kinds, the settings of some kinds, and those of all kinds."""
    kinds = [[f"`{kind}`", first_line(target)] for kind, target in READERS.items()]
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
        markdown_table(["kind", "input"], kinds),
        "## Settings of the input",
        markdown_table(["setting", "kinds", "default", "meaning"], of_some),
        "## Settings of the corpus",
        markdown_table(["setting", "default", "meaning"], of_every),
        WORDS,
        HELD_OUT,
    ]
    return "\n\n".join(sections) + "\n"


KEYS = """# Keys of a sweep file

All keys of a sweep file. `python docs/pages.py` generates this page from the code. `jaxattn schema` prints
it as a JSON schema for editors. [Write a sweep file](../howto/sweep_file.md) explains an example. A
`kind` can also be your own code, `kind = "mine.py:NAME"`; its keyword arguments are then the keys. The
settings of labelled texts are on the page [Texts](texts.md), those of `[probes]` on the page
[Metrics](metrics.md)."""

TOP = {
    "name": "name of the study, and of its folder in `results/`.",
    "data": "the training data, see below.",
    "model": "the model, see below; its key `init` sets initial values.",
    "phases": "the phases of training, in their order, see below.",
    "loss": "the loss, see below.",
    "description": "a sentence for the report.",
    "seeds": 'number of seeds, a range such as "0:200", or a list.',
    "dtype": "number type of parameters and measurements.",
    "chunk": "number of seeds that run together; chosen from the available memory by default.",
    "probes": "the measurements, see [Metrics](metrics.md).",
    "axes": "a grid: keys, each with a list of values; the cells are all combinations.",
    "zip": "keys with lists of equal length, whose values vary together.",
    "halton": "quasi-random cells: their number `points`, and `axes` with `low`, `high`, `log`, `integer`.",
    "cells": "an explicit list of cells, each a table of keys.",
    "exclude": "tables of keys; matching cells are removed from the grid.",
    "blocks": "named variants of the file, each with its own grid.",
    "figures": "figures of the report: tables with a `kind`.",
}


def sweep_keys() -> str:
    """Return the page of keys: the top level, then the kinds of data, models, losses, phases and probes."""
    rows = [[f"`{f.encode_name}`", written(_default(f)), TOP[f.name]] for f in msgspec.structs.fields(Tables)]
    rows.append(["`extends`", "none", "path of another sweep file that this one changes."])
    sections = [KEYS, "## Top level", _key_table(rows)]
    for concept in (concept for concept in CONCEPTS if concept.known):
        known = {kind: target for kind, target in concept.known.items() if kind not in READERS}
        sections.append(f"## {concept.name.removeprefix('a ').capitalize()}: {concept.place}")
        tables = {kind: _rows(target) for kind, target in known.items()}
        # Keys that all kinds share are listed once, so that the table of a kind has what is special about it.
        having = [rows for rows in tables.values() if rows]
        usual = [row for row in having[0] if len(having) > 1 and all(row in rows for rows in having)]
        if usual:
            without = [f"`{kind}`" for kind, rows in tables.items() if not rows]
            but = f", except {' and '.join(without)}" if without else ""
            sections += [f"Keys of every kind{but}:", _key_table(usual)]
        for kind, rows in tables.items():
            sections.append(f"### `{kind}`\n\n{_summary(known[kind])}")
            own = [row for row in rows if row not in usual]
            sections += [_key_table(own)] if own else []
    return "\n\n".join(sections) + "\n"


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _rows(target: Any) -> list[list[str]]:
    # The settings of a generator are documented where the function behind it is.
    behind = getattr(target, "function", None)
    meaning = (meanings(behind) if behind else {}) | meanings(target)
    return [[f"`{f.name}`", written(f.default), meaning[f.name]] for f in fields_of(target)]


def _summary(target: Any) -> str:
    """Return the first sentence of a docstring, and the formula that follows it."""
    text = inspect.cleandoc(target.__doc__ or "")
    formula = text.partition("\n\n")[2].partition("\n\n")[0]
    first = re.sub("; see `[a-z0-9_]+`\\.$", ".", first_line(target))
    return f"{first}\n\n{_typeset(formula)}" if formula.startswith("    ") else first


def _typeset(text: str) -> str:
    """Return a docstring in Markdown, with its indented formulas as mathematics."""
    blocks = re.sub(r"(?m)^    (.+)$", lambda line: f"$$\n{latex(line[1])}\n$$", text)
    return blocks.replace("$$\n$$\n", "$$\n\n$$\n")


def _key_table(rows: list[list[str]]) -> str:
    return markdown_table(["key", "default", "meaning"], rows)


LINE = """# Command line

`jaxattn` lists the commands, and `jaxattn COMMAND --help` prints the text of this page, which
`python docs/pages.py` generates from the code. `python -m jaxattn` is the same as `jaxattn`, and
`jaxattn --version` prints the version. The exit status of a command is 0 for success, 1 if something failed
while it ran, 2 for wrong input, and 130 if it was stopped. An error is one line on standard error, which
gives the place and the remedy."""


def command_line() -> str:
    """Return the page of all commands with their options."""
    return "\n\n".join([LINE, *(_command(name, call) for name, call in commands().items())]) + "\n"


def _command(name: str, call: Callable[..., int]) -> str:
    said = about(call)
    shown = "\n".join(["```text", *said.examples, "```"])
    parts = [f"## jaxattn {name}", "\n".join([said.summary, *said.details]), shown]
    rows = [[f"`{one.usage}`", _default_of(one.default), one.meaning] for one in options_of(call)]
    if rows:
        parts.append(markdown_table(["option", "default", "meaning"], rows))
    return "\n\n".join(parts)


def _default_of(text: str) -> str:
    return text if text in ("", "required") else f"`{text}`"


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
        "Metrics over the steps, with 95 % intervals over seeds.",
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
        "E·v of every token after one step, and the prediction of Lemma 4.1.",
    ),
    Shown(
        "A power law",
        "one_step_law",
        0,
        "scaling_one_step_error_model-dim",
        "The one-step error decreases like d to the power -1/2. The slope is fitted for each seed.",
    ),
    Shown(
        "Convergence to the max-margin direction",
        "margin_convergence",
        0,
        "convergence_one_minus_cosine_p_norm",
        "1 - cos decreases like 1/‖p‖² until the end of the path.",
    ),
    Shown(
        "Comparison of methods",
        "flow_methods",
        0,
        "convergence_one_minus_cosine_evaluations",
        "1 - cos over the number of gradient evaluations.",
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
    """Write a call as ruff does: on one line, else its arguments on one, else each on its own."""
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
        "The kinds of figures (plots). Each is shown with the table of the sweep file that draws it, and\n"
        "with the line of Python that draws it from a finished run. Figures are written to `figures/` in\n"
        "the results folder, as PNG and PDF, with the width of a paper's column of text. The options of a\n"
        'kind are the keyword arguments of `jaxattn.lab.results.figures.function("KIND")`. A figure can\n'
        "also be [your own function](../howto/extending.md#a-figure).",
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
            f"![{each.said.rstrip('.')}](../../results/published/{each.study}/figures/{each.file}.png)",
            f"```toml\n{asked}\n```",
            f"```python\n{call}\n```",
            f"Data: `jaxattn run sweeps/{each.study}.toml`.",
        ]
    parts += [
        "## Explorer",
        "An interactive page with a slider along the path of p: attention, phase plane, curves and support\n"
        "pairs. The notebook [Margin convergence](../../notebooks/margin_convergence.ipynb) contains one.",
        "![The explorer: attention in twelve sequences, the phase plane, two curves, and the support pairs]"
        "(../images/explorer.png)",
        '```python\nja.explore(scores, path, max_margin).write("page.html")\n```',
    ]
    return "\n\n".join(parts) + "\n"


BENCH = Path(__file__).parents[1] / "results" / "published" / "bench"
SEND = """\
`benchmarks/bench.py` times one step of every kind of program, checks that repeated runs are bitwise
identical, and compares the memory with the estimate of `plan`.

```text
python benchmarks/bench.py --out KIND-COUNT.json     # for example h100-1.json; the machine must be idle
```

To contribute the timings of a machine, add the file as `results/published/bench/KIND-COUNT.json`, run
`python docs/pages.py`, and open a pull request that describes the machine. Please also attach the output of
`JAX_PLATFORMS=cuda,cpu pytest -n 0 -m device` (`tpu,cpu` for a TPU), even if a test fails: it compares times
and memory with estimates that are based on data sheets."""


def machines() -> str:
    """Return the page of timings by machine, and how to contribute one."""
    files = sorted(BENCH.glob("*.json"))
    sections = ["# Timings by machine", SEND]
    if files:
        table = beside([read(path) for path in files])
        table.insert(1, "seeds ", table.pop("seeds"))
        rows = [list(map(str, table.columns)), ["---"] * len(table.columns)]
        rows += [[str(x) for x in row] for row in table.itertuples(index=False)]
        shown = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        sections += ["## µs a step and seed", shown, "A whole path of a flow counts as one step."]
    else:
        sections.append("There are no timings yet.")
    return "\n\n".join(sections) + "\n"


PAGES = {
    "metrics": metrics,
    "texts": texts,
    "sweep_keys": sweep_keys,
    "command_line": command_line,
    "gallery": gallery,
    "machines": machines,
}

if __name__ == "__main__":
    for name, made in PAGES.items():
        (Path(__file__).parent / "reference" / f"{name}.md").write_text(made(), encoding="utf-8")
