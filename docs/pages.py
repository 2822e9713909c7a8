"""Pages that are made of the code that they tell of: metrics, texts, keys of sweep files, the command line.

    python docs/pages.py

writes them into reference/ beside this file.
"""

import inspect
import json
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import msgspec
import tomli_w
from bench import beside, read

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
Correlations over tokens, `spearman_..._tokens`, are over those that occur `min_count` times or more in the
training split: the posterior difference of a rare token is noise. A small corpus may have no such token, and
needs a lower one. Correlations over bins, `spearman_..._bins`, are over means of all tokens in `bins` equal
intervals of the posterior difference from `low` to `high`; tokens beyond are in none. Those of its size begin
at 0.
Important, for `important_mass`, `important_selected` and `important_tied`, is a token with a posterior
difference of size `important` or more that occurs `min_count` times or more."""


def metrics() -> str:
    """Write all metrics in Markdown, probe by probe: its first sentences, then a row for every metric."""
    sections = [
        "# Metrics",
        "What the records of a study hold, by the names that tables, figures and `aggregate --metrics` know. "
        "This page is made of the probes themselves: `python docs/pages.py`. What means over seeds and "
        "their intervals are says [intervals.md](intervals.md).",
        "## What `[probes]` sets",
        PROBES_SETTINGS,
        _settings(),
        "## Standard probes",
        *(_section(probe, when) for when, probe in STANDARD.items()),
        "## Probes to ask for",
        *(_section(probe, f'`own = ["{name}"]` of `[probes]`') for name, probe in PROBES.items()),
        "## Phases and records",
        _table(OF_PHASES),
    ]
    return "\n\n".join(sections) + "\n"


def _section(probe: Any, when: str) -> str:
    about = inspect.cleandoc(probe.__doc__ or "").partition("\n\nAttributes:")[0]
    heading = f"### {probe.__name__}: {when}\n\n{about}"
    return f"{heading}\n\n{_table(probe.labels)}" if probe.labels else heading


def _settings() -> str:
    meaning = meanings(Probes)
    rows = [[f"`{field.name}`", written(field.default), meaning[field.name]] for field in fields_of(Probes)]
    return markdown_table(["setting", "default", "meaning"], rows)


def _table(labels: Mapping[str, str]) -> str:
    return markdown_table(["metric", "what it is"], [[f"`{name}`", label] for name, label in labels.items()])


OPENING = """# Texts

What `[data]` may say of labelled texts. This page is made of the classes themselves:
`python docs/pages.py`.

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

`jaxattn data SWEEP` shows the corpora that this makes before anything is run; `--set data.columns=null` takes
out what the file says. `class_names`, `path`, `test_path` and `data_dir` change no number: with others too, a
folder of results is continued, and the texts are not read again."""

WORDS = """## Words

Words are lower-case letters and digits, with inner apostrophes. A combining mark belongs to the letter before
it, and words are in Unicode's form NFC, so a text has the same words however its letters are composed.
`<br />` tags and escaped line breaks end a word. Null is an empty text, and null, NaN or an empty label is a
missing label; `empty = "drop"` leaves such rows out. Compressed files are refused: decompress them first."""

HELD_OUT = """## Held-out texts

The test split is for the numbers that are reported, and `validation` holds training rows out to choose by. At
every measured step there are `validation_loss` and `validation_accuracy` then, as there are `test_loss` and
`test_accuracy`, and `test_accuracy_best_on_validation` is the test accuracy at the step with the best
validation accuracy so far in the phase, the first one of several. `test_accuracy_best_on_test` is chosen on
the test split itself, and so is too good. The vocabulary is that of the rows that are trained on."""


def texts() -> str:
    """Write all kinds and all settings in Markdown, what every kind has in a table of its own."""
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
        markdown_table(["kind", "what it reads"], kinds),
        "## What they read",
        markdown_table(["setting", "kinds", "default", "meaning"], of_some),
        "## What every kind makes of it",
        markdown_table(["setting", "default", "meaning"], of_every),
        WORDS,
        HELD_OUT,
    ]
    return "\n\n".join(sections) + "\n"


KEYS = """# Keys of a sweep file

All that a sweep file may say, made of the code: `python docs/pages.py`.
[Write a sweep file](../howto/sweep_file.md) has one with explanations, `jaxattn schema` prints the same for
editors. Wherever a `kind` stands it may be code of yours, `kind = "mine.py:NAME"`, whose settings are then
its own. Settings of `[data]` of labelled texts are on the page on [texts](texts.md), those of `[probes]` on
that of [metrics](metrics.md)."""

TOP = {
    "name": "of the study, and of its folder below `results/`.",
    "data": "what is trained on, see below.",
    "model": "what is trained, see below; `init` says where parameters start.",
    "phases": "what moves, by which dynamics, until when: a list, one after the other, see below.",
    "loss": "see below.",
    "description": "a sentence for the report.",
    "seeds": 'how many (from 0), a range such as "0:200", or a list.',
    "dtype": "of parameters and measurements.",
    "chunk": "lanes that run together; chosen by memory if none.",
    "probes": "what is measured on the way, see [metrics](metrics.md).",
    "axes": "keys with lists of values: cells are their product.",
    "zip": "the same for keys that go together.",
    "halton": "`points`, and `axes` with `low`, `high`, `log`, `integer`: quasi-random points in bounds.",
    "cells": "an explicit list of tables of keys.",
    "exclude": "tables of keys: cells that match one are left out.",
    "blocks": "variants of the whole file by name, with grids of their own.",
    "figures": "figures of the report: tables with a `kind`.",
}


def sweep_keys() -> str:
    """Write all keys of a sweep file in Markdown: the top, then every built-in thing of each concept."""
    rows = [[f"`{f.encode_name}`", written(_default(f)), TOP[f.name]] for f in msgspec.structs.fields(Tables)]
    rows.append(["`extends`", "none", "another sweep file that this one starts from."])
    sections = [KEYS, "## The top", markdown_table(["key", "default", "meaning"], rows)]
    for concept in (concept for concept in CONCEPTS if concept.known):
        known = {kind: target for kind, target in concept.known.items() if kind not in READERS}
        sections.append(f"## {concept.name.removeprefix('a ').capitalize()}: {concept.place}")
        sections += (_kind(kind, target) for kind, target in known.items())
    return "\n\n".join(sections) + "\n"


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _kind(kind: str, target: Any) -> str:
    # What a generator draws with is told where the function behind it is.
    behind = getattr(target, "function", None)
    meaning = (meanings(behind) if behind else {}) | meanings(target)
    rows = [[f"`{f.name}`", written(f.default), meaning[f.name]] for f in fields_of(target)]
    heading = f"### `{kind}`\n\n{first_line(target)}"
    return f"{heading}\n\n{markdown_table(['key', 'default', 'meaning'], rows)}" if rows else heading


LINE = """# Command line

`jaxattn` lists the commands, and `jaxattn COMMAND --help` prints the same as this page, which is generated
from the code by `python docs/pages.py`. `python -m jaxattn` is the same as `jaxattn`, and `jaxattn --version`
prints the version. The exit status of a command is 0 for success, 1 if something failed while it ran, 2 for
wrong input, and 130 if it was stopped. Errors are one line on standard error that names the place and the
remedy."""


def command_line() -> str:
    """Write all commands with their options in Markdown."""
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
        number: which figure of the file.
        file: what was drawn.
        said: what to see in it.
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
        "E·v rises, and E·p is a U: the paper's Figure 3.",
    ),
    Shown(
        "Curves of metrics",
        "imdb_one_layer",
        1,
        "curves",
        "Every metric over steps, with its interval over seeds.",
    ),
    Shown(
        "Tokens that attention prefers",
        "imdb_one_layer",
        2,
        "top_tokens_joint",
        "The words of largest E·p, coloured by the class they speak for.",
    ),
    Shown(
        "One step on E",
        "one_step_law",
        1,
        "one_step_law_cell6",
        "E·v of every token, and the line of Lemma 4.1.",
    ),
    Shown(
        "A power of one key",
        "one_step_law",
        0,
        "scaling_one_step_error_model-dim",
        "The error falls like d to the power -1/2; the slope is fitted seed by seed.",
    ),
    Shown(
        "Convergence to the max-margin direction",
        "margin_convergence",
        0,
        "convergence_one_minus_cosine_p_norm",
        "1 - cos falls like ‖p‖ to the power -2 until the end of the path.",
    ),
    Shown(
        "Methods against each other",
        "flow_methods",
        0,
        "convergence_one_minus_cosine_evaluations",
        "The same distance over gradient evaluations.",
    ),
    Shown(
        "A phase diagram",
        "selection_vs_eta0",
        0,
        "diagram_only_relevant_selected_phases-embed-step_size_model-dim",
        "A colour for each value of two keys.",
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
    """Write the page of figures, each with the code that draws it."""
    parts = [
        "# Gallery",
        "Each figure with what draws it: a table of a sweep file, or a line of Python for a run that is\n"
        "there. All come as PNG and as PDF with embedded fonts, as wide as the text of a paper, in\n"
        "`figures/` of the results folder. Options of a kind are the keyword arguments of its function,\n"
        'which `jaxattn.lab.results.figures.function("KIND")` returns; a figure of\n'
        "[your own](../howto/extending.md#a-figure) is a function too.",
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
            f"The run: `jaxattn run sweeps/{each.study}.toml`.",
        ]
    parts += [
        "## A path to explore",
        "One slider over the path of p, with attention, phase plane, curves and support pairs; see it in\n"
        "[margin convergence](../../notebooks/margin_convergence.ipynb).",
        '```python\nja.explore(scores, path, max_margin).write("page.html")\n```',
    ]
    return "\n\n".join(parts) + "\n"


BENCH = Path(__file__).parents[1] / "results" / "published" / "bench"
SEND = """\
`benchmarks/bench.py` times a step of every kind of program, several times to see whether its bits repeat, and
compares memory with what `plan` predicts.

```text
python benchmarks/bench.py --out KIND-COUNT.json     # such as h100-1.json, on a machine without other work
```

To send it in, add the file as `results/published/bench/KIND-COUNT.json` (the first one makes that folder),
write this page anew with `python docs/pages.py`, and open a pull request that says what the machine is. What
only a chip can tell is also asked by `JAX_PLATFORMS=cuda,cpu pytest -n 0 -m device` (`tpu,cpu` for a TPU):
whether bits repeat, memory against the plan, time against the roofline. Send its output along, above all
where a test fails: the plan's constants come from data sheets."""


def machines() -> str:
    """Write what machines took, side by side, from the files that were sent in; and how to send one in."""
    files = sorted(BENCH.glob("*.json"))
    sections = ["# Machines side by side", SEND]
    if files:
        table = beside([read(path) for path in files])
        table.insert(1, "seeds ", table.pop("seeds"))
        rows = [list(map(str, table.columns)), ["---"] * len(table.columns)]
        rows += [[str(x) for x in row] for row in table.itertuples(index=False)]
        shown = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        sections += ["## µs a step and seed", shown, "A path that is found at once counts as one step."]
    else:
        sections.append("No file has been sent in yet.")
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
