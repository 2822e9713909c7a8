"""Attention sinks: growth of the sink's logits, and decay of its value."""

import numpy as np

from jaxattn.lab.books import around, at_least, cells, mean

# Slopes are fitted to times from t/LAST to the final time t.
LAST = 100.0
TEXTS = {
    "slope": "slope of the sink logit",
    "slope_ratio": "slope of the sink logit / closed form at finite time",
    "spread": "spread of sink logits over their mean",
    "value_slope": "slope of the log value",
    "attention": "attention to the sink",
}
# Criterion, published value and basis, by block. The published slopes hold for large t; the closed form at
# finite time is derived here.
SINK = {
    "slope": (around(0.5, 0.02), "log t, factor 1/2", "published"),
    "slope_ratio": (around(1.0, 0.02), "", "beyond"),
    "spread": (around(0.0, 0.1), "0 for large t", "published"),
    "attention": (at_least(0.95), "near 1", "published"),
}
DECAY = (around(-0.5, 0.05), "decreasing; -1/2 in closed form", "published")
EXPECTED = {
    "both": SINK | {"value_slope": DECAY},
    "value fixed at 0": SINK,
    "logits fixed at 0": {
        "value_slope": (around(0.0, 0.01), "no decay without a growing logit", "published"),
    },
}


def check(results):
    """Compare slopes against log t with their closed forms, with both, one, or the other trained."""
    for cell in cells(results["study"]):
        seeds = [one_seed(run) for run in cell.wide()]
        for key in seeds[0]:
            expected, published, basis = EXPECTED[cell.name].get(key, (None, "", "published"))
            samples = [seed[key] for seed in seeds]
            text = f"{cell.name}: {TEXTS[key]}"
            about = {"expected": expected, "published": published, "basis": basis}
            yield mean(f"{cell.id}.{key}", text, samples, **about)


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


def one_seed(run) -> dict[str, float]:
    """Measure one seed from its metrics by step."""
    late, end = run[run["log_time"] >= run["log_time"].max() - np.log(LAST)], run.iloc[-1]
    found = {}
    if end["sink_logit"] != 0:
        found["slope"] = slope(late["log_time"], late["sink_logit"])
        found["slope_ratio"] = found["slope"] / closed_form(end, late["log_time"])
        found["spread"] = end["sink_logit_spread"] / end["sink_logit"]
    if end["sink_value"] > 0:
        found["value_slope"] = slope(late["log_time"], np.log(late["sink_value"]))
    return found | {"attention": end["sink_attention"]}
