"""All metrics of built-in probes and phases in words, as docs/metrics.md has them.

python -m jaxattn.glossary > docs/metrics.md
"""

import inspect
from collections.abc import Mapping
from typing import Any

from jaxattn.probes import PROBES, Fit, Importance, OneStepError, Selected
from jaxattn.results.labels import METRICS

STANDARD = {
    "in every study": Fit,
    "in every study whose model has scores and values of tokens": Importance,
    "in every study whose model attends to tokens": Selected,
    "after one step on E": OneStepError,
}


def glossary() -> str:
    """Write all metrics in Markdown, probe by probe: its first sentences, then a row for every metric."""
    sections = [
        "# Metrics",
        "What the records of a study hold, by the names that tables, figures and `aggregate --metrics` know. "
        "This page is made of the probes themselves: `python -m jaxattn.glossary`.",
        "## Standard probes",
        *(_section(probe, when) for when, probe in STANDARD.items()),
        "## Probes to ask for",
        *(_section(probe, f'`own = ["{name}"]` of `[probes]`') for name, probe in PROBES.items()),
        "## Phases and records",
        _table({name: label for name, label in METRICS.items() if name not in _of_probes()}),
    ]
    return "\n\n".join(sections) + "\n"


def _section(probe: Any, when: str) -> str:
    about = inspect.cleandoc(probe.__doc__ or "").partition("\n\nAttributes:")[0]
    heading = f"### {probe.__name__}: {when}\n\n{about}"
    return f"{heading}\n\n{_table(probe.labels)}" if probe.labels else heading


def _table(labels: Mapping[str, str]) -> str:
    # A bar would end the cell.
    rows = [f"| `{name}` | {label.replace('|', chr(92) + '|')} |" for name, label in labels.items()]
    return "\n".join(["| metric | what it is |", "|---|---|", *rows])


def _of_probes() -> set[str]:
    return {name for probe in (*STANDARD.values(), *PROBES.values()) for name in probe.labels}


if __name__ == "__main__":
    print(glossary(), end="")
