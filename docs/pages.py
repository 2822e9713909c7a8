"""Pages that are made of the classes that they tell of: all metrics, and all settings of texts.

    python docs/pages.py

writes metrics.md and texts.md beside this file.
"""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxattn.base import Measurement
from jaxattn.core.docstrings import first_line, meanings, table, written
from jaxattn.data.readers import READERS
from jaxattn.probes import PROBES, Accuracy, Fit, Importance, OneStepError, Selected
from jaxattn.probes.settings import Probes
from jaxattn.results.labels import OF_PHASES
from jaxattn.study.registry import fields_of

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
    return table(["setting", "default", "meaning"], rows)


def _table(labels: Mapping[str, str]) -> str:
    return table(["metric", "what it is"], [[f"`{name}`", label] for name, label in labels.items()])


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
        table(["kind", "what it reads"], kinds),
        "## What they read",
        table(["setting", "kinds", "default", "meaning"], of_some),
        "## What every kind makes of it",
        table(["setting", "default", "meaning"], of_every),
        HELD_OUT,
    ]
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    for name, made in (("metrics", metrics), ("texts", texts)):
        (Path(__file__).parent / f"{name}.md").write_text(made(), encoding="utf-8")
