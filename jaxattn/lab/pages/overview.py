"""Overview of a run: up to six metrics, and notes that explain the numbers."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxattn.core.fractions import reaches
from jaxattn.lab.results.labels import ranges_text
from jaxattn.lab.results.run import Run
from jaxattn.lab.results.statistics import last_steps

_MAX = 6
# Maximum number of cells that a note lists.
_LISTED = 8
ACCURACIES = ("test_accuracy", "validation_accuracy", "accuracy", "train_accuracy")
_LOSSES = ("loss", "log_loss", "test_loss")
# Metrics of built-in phases and probes, in display order.
STANDARD = (
    "important_selected", "spearman_Ev_tokens", "spearman_Ep_absolute_tokens", "one_step_error",
    "important_mass", "important_tied", *ACCURACIES, *_LOSSES, "spearman_Ev_bins",
    "correlation_Ev_alpha", "spearman_Ep_absolute_bins", "selected_tokens",
    "spearman_Ep_signed_tokens", "spearman_Ep_signed_bins", "p_norm", "log_gradient_norm", "validation_loss",
    "test_accuracy_best_on_test", "test_accuracy_best_on_validation", "evaluations", "came_to_end",
    "arc_length", "log_time", "log_v_norm", "drift", "mismatch",
)  # fmt: skip


def metrics(results: Run) -> list[str]:
    """Select at most six metrics to display.

    The list consists of one accuracy, the loss, requested metrics, and metrics from `STANDARD`. Requested are
    metrics in figures, then those that are user-defined or come from a probe that the study switches on.

    Returns:
        Names in display order. The accuracy is test accuracy if available, else validation, else training
        accuracy.
    """
    names = recorded(results)
    asked = _requested(results, names)
    first = [_first(group, names) for group in (ACCURACIES, _LOSSES)]
    others = [name for name in STANDARD if name in names]
    order = dict.fromkeys([*filter(None, first), *asked, *others])
    return list(order)[:_MAX]


def recorded(results: Run, *, finite: bool = False) -> list[str]:
    """Return the metrics recorded at the ends of phases, except those that describe a single bin.

    If `finite`, return only metrics that have a finite value.
    """
    last = last_steps(results.records)
    names = last["metric"][np.isfinite(last["value"]) | (not finite)].unique()
    return [str(name) for name in names if not re.search(r"_bin_\d+$", str(name))]


def _requested(results: Run, names: Sequence[str]) -> list[str]:
    figures = results.manifest["config"].get("figures") or []
    shown = [name for each in figures for name in (*(each.get("metrics") or ()), each.get("metric"))]
    further = [name for name in names if name not in STANDARD and name not in shown]
    return [*filter(names.__contains__, dict.fromkeys(shown)), *further]


def _first(group: Iterable[str], names: Sequence[str]) -> str | None:
    return next((name for name in group if name in names), None)


# Minimum number of tokens for a reliable rank correlation.
FEW = 10
_OVER_TOKENS = re.compile(r"spearman_\w+_tokens")
_OF_IMPORTANT = re.compile(r"important_(mass|selected|tied)")
_OF_RELEVANT = re.compile(r"(only_)?relevant_(selected|tied)")


def caveats(results: Run) -> list[str]:
    """Explain why some metrics have no final value, and on which tokens and bins the other metrics are based.

    Returns:
        One line per reason, starting with the affected metrics, and one line per phase and reason for which
        seeds failed.
    """
    last = last_steps(results.records)
    last = last[~last["metric"].str.contains(r"_bin_\d+$")]
    finite = np.isfinite(last["value"]).groupby([last[key] for key in ("cell", "metric", "phase")]).any()
    # Metrics and cells to which a reason applies.
    reasons: dict[str, tuple[dict[str, None], dict[int, None]]] = {}
    infinite = "the value is minus infinity, the logarithm of exactly zero"
    for cell, metric, phase in finite.index[~finite]:
        own = last[(last["cell"] == cell) & (last["metric"] == metric) & (last["phase"] == phase)]
        if np.isneginf(own["value"]).all():
            _note(reasons, infinite, metric, cell)
    for pattern, reason in (
        (_OVER_TOKENS, _few_tokens),
        (_OF_IMPORTANT, _important),
        (_OF_RELEVANT, _relevant),
    ):
        for cell, metric in dict.fromkeys((cell, metric) for cell, metric, _ in finite.index):
            if pattern.fullmatch(metric) and (words := reason(results, int(cell))):
                _note(reasons, words, metric, cell)
    lines = [f"all metrics: {held}"] if (held := results.held) else []
    lines += [f"all metrics: {words}" for words in (results.manifest.get("mixed"), results.older) if words]
    lines += [
        f"{', '.join(metrics)}: {reason}{_in_cells(results, [*cells])}"
        for reason, (metrics, cells) in reasons.items()
    ]
    failed = results.failures.groupby(["phase", "reason"], sort=False).size()
    return lines + [
        f"{number} seed{'s' * (number > 1)} failed in phase {phase} and {'are' if number > 1 else 'is'} not "
        f"in the means from then on: {reason}"
        for (phase, reason), number in failed.items()
    ]


def _note(reasons: dict[str, Any], reason: str, metric: str, cell: int) -> None:
    metrics, cells = reasons.setdefault(reason, ({}, {}))
    metrics[metric] = cells[int(cell)] = None


def _in_cells(results: Run, cells: Sequence[int]) -> str:
    """Return " (cells 0 to 2)", or "" if the cells are all cells of the run."""
    if len(cells) == (total := len(results.manifest["cells"])):
        return ""
    if len(cells) > _LISTED:
        return f" ({len(cells):,} of {total:,} cells)"
    return f" (cell{'s' * (len(cells) > 1)} {ranges_text(sorted(cells))})"


def _of_probes(results: Run, cell: int, *keys: str) -> list[float]:
    try:
        found = [float(results.lookup(cell, f"probes.{key}")) for key in keys]
    except (ValueError, TypeError, OverflowError):
        return []
    return found if np.isfinite(found).all() else []


def _few_tokens(results: Run, cell: int) -> str:
    known = _of_probes(results, cell, "min_count")
    tokens = results.tokens[results.tokens["cell"] == cell].drop_duplicates(["seed", "id"])
    if not known or tokens.empty:
        return ""
    least = max(int(known[0]), 1)
    frequent = (tokens["count"] >= least).groupby(tokens["seed"]).sum()
    if (fewest := int(frequent.min())) >= FEW:
        return ""
    if frequent.max() < 2:
        return f"no value, because fewer than two tokens occur probes.min_count = {least} times; lower it"
    number = _span(fewest, int(frequent.max()))
    return f"based on only {number} tokens per seed that occur probes.min_count = {least} times; lower it"


def _important(results: Run, cell: int) -> str:
    if not (known := _of_probes(results, cell, "important", "min_count")):
        return ""
    size, least = known
    words = (
        f"tokens are important if |posterior difference| ≥ {size:g} (probes.important) and they occur at "
        f"least {'once' if least == 1 else f'{least:g} times'} (probes.min_count)"
    )
    tokens = results.tokens[results.tokens["cell"] == cell].drop_duplicates(["seed", "id", "class"])
    if tokens.empty:
        return words
    large = tokens[reaches(tokens["posterior_difference"].abs(), size) & (tokens["count"] >= least)]
    number = large.groupby("seed")["id"].nunique().reindex(tokens["seed"].unique(), fill_value=0)
    return f"{words}: {_span(int(number.min()), int(number.max()))} tokens per seed"


def _relevant(results: Run, cell: int) -> str:
    probes = results.tables(cell).get("probes")
    own = probes.get("own") if isinstance(probes, Mapping) else ()
    for table in own if isinstance(own, list | tuple) else ():
        if isinstance(table, Mapping) and table.get("kind") == "relevant_tokens":
            relevant, nats = table.get("relevant"), table.get("nats")
            if isinstance(relevant, int) and isinstance(nats, int | float):
                return (
                    f"tokens 0 to {relevant - 1} are relevant (relevant), and scores within {nats:g} nats of "
                    "the highest one in a sequence count as highest (nats)"
                )
    return ""


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"
