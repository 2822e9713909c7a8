"""Summary of a run: up to six metrics, two sentences, and notes that explain the numbers."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from jaxattn.core.fractions import bin_numbers, reaches
from jaxattn.lab.results.labels import format_number, ranges_text, setting
from jaxattn.lab.results.run import Run
from jaxattn.lab.results.statistics import estimates, last_steps

_MAX = 6
# Maximum number of cells that a note lists.
_LISTED = 8
ACCURACIES = ("test_accuracy", "validation_accuracy", "accuracy", "train_accuracy")
_LOSSES = ("loss", "log_loss", "test_loss")
_VALUES = ("spearman_Ev_tokens", "spearman_Ev_bins", "correlation_Ev_alpha")
DIRECTIONS = {
    "one_minus_cosine": "its max-margin direction",
    "relaxed_one_minus_cosine": "p_relax",
    "limit_one_minus_cosine": "its limit",
}
# Metrics of built-in phases and probes, in display order.
STANDARD = (
    "important_selected", "spearman_Ev_tokens", "spearman_Ep_absolute_tokens", "one_step_error",
    "important_mass", "important_tied", *ACCURACIES, *_LOSSES, *_VALUES, "spearman_Ep_absolute_bins",
    "selected_tokens",
    "spearman_Ep_signed_tokens", "spearman_Ep_signed_bins", "p_norm", "log_gradient_norm", "validation_loss",
    "test_accuracy_best_on_test", "test_accuracy_best_on_validation", "evaluations", "came_to_end",
    "arc_length", "log_time", "log_v_norm", "drift", "mismatch",
)  # fmt: skip


class _Estimated(NamedTuple):
    """Estimate of a metric in a cell: settings, phase, and the estimate as a string and as numbers."""

    settings: str
    phase: str
    text: str
    value: float
    low: float
    high: float


def metrics(results: Run) -> list[str]:
    """Select at most six metrics to display.

    The list consists of one accuracy, the loss, up to two requested metrics, and metrics from `STANDARD`. A
    metric is requested if it is user-defined or comes from a built-in probe in `probes.own`; those shown in
    figures come first.

    Returns:
        Names in display order. The accuracy is test accuracy if available, else validation, else training
        accuracy.
    """
    names = recorded(results)
    asked = _requested(results, names)
    first = [_first(group, names) for group in (ACCURACIES, _LOSSES)]
    others = [name for name in STANDARD if name in names]
    order = dict.fromkeys([*filter(None, first), *asked[:2], *others, *asked])
    return list(order)[:_MAX]


def sentences(results: Run) -> tuple[str, str]:
    """Return two sentences: the final accuracy and loss, and the behaviour of E·v, attention and p.

    The numbers are those in `summary_rows` for the last phase that recorded each metric. If there are several
    cells, the lowest and highest numbers are reported.
    """
    names = recorded(results, finite=True)
    asked = [name for name in _requested(results, names) if name not in DIRECTIONS]
    # Values of different losses are not comparable.
    has_one_loss = not any(axis.partition(".")[0] == "loss" for axis in results.axes)
    groups = (ACCURACIES, _LOSSES) if has_one_loss else (ACCURACIES,)
    fit = [name for group in groups if (name := _first(group, names))]
    values, direction = (_first(group, names) for group in (_VALUES, DIRECTIONS))
    known: list[tuple[str | None, Callable[[list[_Estimated]], str]]] = [
        (values, lambda cells: _follows(values or "", cells)),
        (_first(["important_selected"], names), _selects),
        (direction, lambda cells: f"1 - cos between p and {DIRECTIONS[direction or '']} {_is(cells)}"),
        *((name, lambda cells, name=name: f"{name} {_is(cells)}") for name in asked[:1]),
    ]
    rest = [name for name in metrics(results) if name in names and name not in fit]
    wanted = [*dict.fromkeys([*fit, *(x for x, _ in known if x), *rest])]
    table = estimates(results, metrics=wanted)
    found = {name: _estimated(results, table[table["metric"] == name]) for name in wanted if name in names}
    learned = [words(found[name]) for name, words in known if name and found[name]][:3]
    learned = learned or [f"{name} {_is(found[name])}" for name in rest if found[name]][:1]
    words = {name: name.replace("train_", "training_").replace("_", " ") for name in fit}
    fits = [f"the {words[name]} {_is(found[name])}" for name in fit if found[name]]
    phases = {cell.phase for name in fit for cell in found[name]}
    after = f"After the phase {phases.pop()}" if len(phases) == 1 else "After the last phase"
    return (
        f"{after}, {' and '.join(fits)}." if fits else "No accuracy and no loss has a finite value.",
        f"{_capitalised('; '.join(learned))}." if learned else "No other metric has a finite value.",
    )


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
    requested = [name for name in names if name not in STANDARD]
    return [*filter(requested.__contains__, dict.fromkeys(shown)), *(x for x in requested if x not in shown)]


def _first(group: Iterable[str], names: Sequence[str]) -> str | None:
    return next((name for name in group if name in names), None)


def _estimated(results: Run, table: pd.DataFrame) -> list[_Estimated]:
    last: dict[str, _Estimated] = {}
    short = {axis: axis.rpartition(".")[2] for axis in results.axes}
    names = short if len(set(short.values())) == len(short) else {axis: axis for axis in short}
    for row in table[np.isfinite(table["value"])].itertuples():
        values = {axis: setting(x) for axis, x in results.settings(row.cell).items()}
        settings = ", ".join(f"{names[axis]} = {values[axis]}" for axis in names if values.get(axis))
        last[settings] = _Estimated(settings, str(row.phase), row.text, row.value, row.low, row.high)
    return sorted(last.values(), key=lambda cell: cell.value)


def _range(cells: list[_Estimated]) -> str:
    low, high = cells[0], cells[-1]
    if low.text == high.text:
        return low.text
    return f"from {low.text} at {low.settings} to {high.text} at {high.settings}"


def _is(cells: list[_Estimated]) -> str:
    return f"{'is' if cells[0].text == cells[-1].text else 'ranges'} {_range(cells)}"


def _follows(metric: str, cells: list[_Estimated]) -> str:
    over = metric.rpartition("_")[2]
    how = "correlation with α" if over == "alpha" else f"Spearman correlation over {over}"
    if not any(cell.low == cell.low for cell in cells):
        with_importance = f"Spearman correlation between E·v and importance over {over}"
        return f"the {'correlation of E·v with α' if over == 'alpha' else with_importance} {_is(cells)}"
    yes, against = sum(cell.low > 0 for cell in cells), sum(cell.high < 0 for cell in cells)
    weakly = " weakly" if yes and max(cell.low for cell in cells) < 0.5 else ""
    words = (
        f"E·v follows importance{weakly}"
        if yes
        else "E·v decreases with importance"
        if against
        else "there is no evidence that E·v follows importance"
    )
    among = f" in {yes or against} of {len(cells)} cells" if 0 < (yes or against) < len(cells) else ""
    return f"{words}{among} ({how} {_range(cells)})"


def _selects(cells: list[_Estimated]) -> str:
    return f"the share of sequences in which attention selects an important token {_is(cells)}"


def _capitalised(text: str) -> str:
    return text[0].upper() + text[1:] if text.startswith(("attention ", "there ", "the ")) else text


# Minimum number of tokens for a reliable rank correlation.
FEW = 10
_OVER_TOKENS = re.compile(r"spearman_\w+_tokens")
_OVER_SIGNED_BINS = re.compile(r"spearman_(Ev|Ep_signed)_bins")
_OF_IMPORTANT = re.compile(r"important_(mass|selected|tied)")


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
        (_OVER_SIGNED_BINS, _outside_bins),
        (_OF_IMPORTANT, _important),
    ):
        for cell, metric in dict.fromkeys((cell, metric) for cell, metric, _ in finite.index):
            if pattern.fullmatch(metric) and (words := reason(results, int(cell))):
                _note(reasons, words, metric, cell)
    lines = [f"all metrics: {held}"] if (held := results.held) else []
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


def _outside_bins(results: Run, cell: int) -> str:
    if not (known := _of_probes(results, cell, "low", "high")):
        return ""
    low, high = known
    tokens = results.tokens[(results.tokens["cell"] == cell) & (results.tokens["count"] > 0)]
    difference = tokens["posterior_difference"]
    far = tokens["id"].where(bin_numbers(difference.to_numpy(float), np.array([low, high])) < 0)
    outside = far.groupby(tokens["seed"]).nunique()
    if outside.empty or outside.max() == 0:
        return ""
    number = _span(int(outside.min()), int(outside.max()))
    return (
        f"without {number} tokens per seed whose posterior difference is outside the bins, [probes.low, "
        f"probes.high] = [{format_number(low)}, {format_number(high)}]"
    )


def _important(results: Run, cell: int) -> str:
    if not (known := _of_probes(results, cell, "important", "min_count")):
        return ""
    size, least = known
    words = (
        f"tokens are important if |posterior difference| ≥ {size:g} (probes.important) and they occur at "
        f"least {'once' if least == 1 else f'{least:g} times'} (probes.min_count)"
    )
    tokens = results.tokens[results.tokens["cell"] == cell]
    tokens = tokens[tokens["phase"] == tokens["phase"].min()]
    large = tokens[reaches(tokens["posterior_difference"].abs(), size)]
    if tokens.empty:
        return words
    frequent = large["id"].where(large["count"] >= least).groupby(large["seed"]).nunique()
    rare = large["id"].where(large["count"] < least).groupby(large["seed"]).nunique()
    frequent, rare = (x.reindex(tokens["seed"].unique(), fill_value=0) for x in (frequent, rare))
    words += f": {_span(int(frequent.min()), int(frequent.max()))} tokens per seed"
    return words + (f", excluding {_span(int(rare.min()), int(rare.max()))} rarer ones" if rare.any() else "")


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"
