"""Analysis of the growth of the sink's logits and the decay of its value."""

import numpy as np

from jaxattn.lab.books import Finding, Measured, cell_names
from jaxattn.lab.results import judge


def slope(log_time, y) -> float:
    """Return the least-squares slope of y against log t."""
    return float(np.polyfit(log_time, y, 1)[0])


def closed_form(end, log_time) -> float:
    """Return the slope at finite times of the flow da/dt = 2 C e^a/(e^a + N)^3 from a = 0.

    It has the solution 2 C t = F(e^a) - F(1) with F(u) = u²/2 + 3 N u + 3 N² log u - N³/u.
    """
    u = np.exp(np.linspace(0, end["sink_logit"], 100_000))
    N = u[-1] * (1 / end["sink_attention"] - 1)
    F = u**2 / 2 + 3 * N * u + 3 * N**2 * np.log(u) - N**3 / u
    elapsed = np.log(F[1:] - F[0])
    elapsed += log_time.iloc[-1] - elapsed[-1]
    return slope(log_time, np.interp(log_time, elapsed, np.log(u[1:])))


def one_seed(run, last: float) -> dict[str, float]:
    """Measure one seed from its metrics by step, with slopes over times from t/`last` to the final time t."""
    late, end = run[run["log_time"] >= run["log_time"].max() - np.log(last)], run.iloc[-1]
    found = {}
    if end["sink_logit"] != 0:
        found["slope of the sink logit"] = slope(late["log_time"], late["sink_logit"])
        ratio = found["slope of the sink logit"] / closed_form(end, late["log_time"])
        found["slope of the sink logit / closed form at finite time"] = ratio
        found["spread of sink logits over their mean"] = end["sink_logit_spread"] / end["sink_logit"]
    if end["sink_value"] > 0:
        found["slope of the log value"] = slope(late["log_time"], np.log(late["sink_value"]))
    return found | {"attention to the sink": end["sink_attention"]}


def growth(results, item, *, last: float = 100.0) -> Measured:
    """Compare slopes against log t with their closed forms, for each block."""
    findings = []
    for cell, name in cell_names(results):
        records = results.records[results.records["cell"] == cell]
        wide = records.pivot_table(index=["seed", "step"], columns="metric", values="value")
        seeds = [one_seed(run, last) for _, run in wide.groupby("seed")]
        for key in seeds[0]:
            samples = np.array([seed[key] for seed in seeds])
            findings.append(Finding(f"{name}: {key}", judge.mean(samples), f"{len(samples)} seeds"))
    return Measured(findings, {})
