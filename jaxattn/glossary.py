"""All metrics of built-in probes and phases in words, as docs/metrics.md has them.

python -m jaxattn.glossary > docs/metrics.md
"""

import inspect
from collections.abc import Mapping
from typing import Any

from jaxattn.base import Measurement
from jaxattn.core.docstrings import meanings, table, written
from jaxattn.probes import PROBES, Accuracy, Fit, Importance, OneStepError, Selected
from jaxattn.probes.settings import Probes
from jaxattn.results.labels import OF_PHASES
from jaxattn.study.kinds import fields_of

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


def glossary() -> str:
    """Write all metrics in Markdown, probe by probe: its first sentences, then a row for every metric."""
    sections = [
        "# Metrics",
        "What the records of a study hold, by the names that tables, figures and `aggregate --metrics` know. "
        "This page is made of the probes themselves: `python -m jaxattn.glossary`. What means over seeds and "
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


if __name__ == "__main__":
    print(glossary(), end="")
