"""Why a metric has no value: what a summary shows as "– (n=0)", in words."""

import re

import numpy as np

from jaxattn.errors import InputError
from jaxattn.results.run import Run
from jaxattn.results.statistics import last_steps


def explain_empty(results: Run) -> list[str]:
    """Say why metrics have no finite value at the end of a phase, as far as the run tells.

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
            reason = "minus infinity, the logarithm of exactly zero"
        elif re.fullmatch(r"spearman_\w+_tokens", metric) and (few := _rare(results, int(cell))):
            reason = few
        else:
            continue
        reasons.setdefault(reason, {})[metric] = None
    return [f"{', '.join(metrics)}: {reason}" for reason, metrics in reasons.items()]


def _rare(results: Run, cell: int) -> str:
    """Say that fewer than two tokens of any seed occur often enough for correlations; nothing else."""
    try:
        least = max(int(results.lookup(cell, "probes.min_count")), 1)
    except InputError:
        return ""
    tokens = results.tokens[results.tokens["cell"] == cell]
    if tokens.empty or (tokens[tokens["count"] >= least].groupby("seed")["id"].nunique() > 1).any():
        return ""
    return f"fewer than two tokens occur probes.min_count = {least} times; lower it"
