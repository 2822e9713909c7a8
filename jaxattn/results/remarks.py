"""What a reader of a summary has to know: why a metric has no value, and what little it rests on."""

import re

import numpy as np

from jaxattn.core.errors import InputError
from jaxattn.results.numbers import format_number
from jaxattn.results.run import Run
from jaxattn.results.statistics import last_steps

# A rank correlation over fewer tokens is hardly one.
FEW = 10
_OVER_TOKENS = re.compile(r"spearman_\w+_tokens")
_OVER_SIGNED_BINS = re.compile(r"spearman_(Ev|Ep_signed)_bins")
_OF_IMPORTANT = re.compile(r"important_(mass|selected|tied)")


def remarks(results: Run) -> list[str]:
    """Say of the end of each phase why metrics have no value, and on which tokens and bins others rest.

    Args:
        results: a results folder.

    Returns:
        A line for every reason, the metrics first.
    """
    last = last_steps(results.records)
    last = last[~last["metric"].str.contains(r"_bin_\d+$")]
    finite = np.isfinite(last["value"]).groupby([last[key] for key in ("cell", "metric", "phase")]).any()
    reasons: dict[str, dict[str, None]] = {}
    for cell, metric, phase in finite.index[~finite]:
        own = last[(last["cell"] == cell) & (last["metric"] == metric) & (last["phase"] == phase)]
        if np.isneginf(own["value"]).all():
            reasons.setdefault("minus infinity, the logarithm of exactly zero", {})[metric] = None
    for pattern, reason in (
        (_OVER_TOKENS, _few_tokens),
        (_OVER_SIGNED_BINS, _outside_bins),
        (_OF_IMPORTANT, _important),
    ):
        for cell, metric in dict.fromkeys((cell, metric) for cell, metric, _ in finite.index):
            if pattern.fullmatch(metric) and (words := reason(results, int(cell))):
                reasons.setdefault(words, {})[metric] = None
    said = [f"{', '.join(metrics)}: {reason}" for reason, metrics in reasons.items()]
    failed = results.failures.groupby(["phase", "reason"], sort=False).size()
    return said + [
        f"without a value from phase {phase} on, and in no mean: {number} seed{'s' * (number > 1)}, {reason}"
        for (phase, reason), number in failed.items()
    ]


def _few_tokens(results: Run, cell: int) -> str:
    """Say that few tokens of some seed occur often enough for correlations, or nothing."""
    try:
        least = max(int(results.lookup(cell, "probes.min_count")), 1)
    except (ValueError, TypeError, OverflowError):  # not there, or no number
        return ""
    tokens = results.tokens[results.tokens["cell"] == cell].drop_duplicates(["seed", "id"])
    if tokens.empty:
        return ""
    frequent = (tokens["count"] >= least).groupby(tokens["seed"]).sum()
    if (fewest := int(frequent.min())) >= FEW:
        return ""
    if frequent.max() < 2:
        return f"fewer than two tokens occur probes.min_count = {least} times; lower it"
    number = _range(fewest, int(frequent.max()))
    return f"over {number} tokens of a seed, those that occur probes.min_count = {least} times; lower it"


def _outside_bins(results: Run, cell: int) -> str:
    """Say how many tokens are in no bin of the posterior difference, or nothing."""
    try:
        low, high = (float(results.lookup(cell, f"probes.{end}")) for end in ("low", "high"))
    except (ValueError, TypeError, OverflowError):  # not there, or no number
        return ""
    tokens = results.tokens[(results.tokens["cell"] == cell) & (results.tokens["count"] > 0)]
    difference = tokens["posterior_difference"]
    far = tokens["id"].where((difference < low - 1e-6) | (difference > high + 1e-6))
    outside = far.groupby(tokens["seed"]).nunique()
    if outside.empty or outside.max() == 0:
        return ""
    number = _range(int(outside.min()), int(outside.max()))
    return (
        f"without {number} tokens of a seed whose posterior difference is in no bin: outside [probes.low, "
        f"probes.high] = [{format_number(low)}, {format_number(high)}]"
    )


def _important(results: Run, cell: int) -> str:
    """Say which tokens are important, and how many."""
    try:
        size, least = (float(results.lookup(cell, f"probes.{key}")) for key in ("important", "min_count"))
    except InputError:
        return ""
    words = (
        f"important is |posterior difference| ≥ {size:g} (probes.important) in {least:g} or more occurrences"
    )
    words += " (probes.min_count)"
    tokens = results.tokens[results.tokens["cell"] == cell]
    tokens = tokens[tokens["phase"] == tokens["phase"].min()]
    large = tokens[tokens["posterior_difference"].abs() >= size]
    if tokens.empty:
        return words
    frequent = large["id"].where(large["count"] >= least).groupby(large["seed"]).nunique()
    rare = large["id"].where(large["count"] < least).groupby(large["seed"]).nunique()
    frequent, rare = (x.reindex(tokens["seed"].unique(), fill_value=0) for x in (frequent, rare))
    words += f": {_range(int(frequent.min()), int(frequent.max()))} tokens of a seed"
    return words + (f", without {_range(int(rare.min()), int(rare.max()))} rarer ones" if rare.any() else "")


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"
