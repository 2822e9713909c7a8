"""Value and softmax: attention and loss from the published start, which tokens win, and the limit of p."""

from jaxattn.lab.books import around, at_least, cells, mean, share

NAMES = {"published": "published start", "drawn": "random starts"}
# Values printed by an independent run of the published settings, and half a unit in their last digit.
PRINTED = {
    "largest_attention": {
        1000: (0.232, 0.0005, "0.232"),
        10_000: (0.875, 0.0005, "0.875"),
        100_000: (0.9525, 0.00005, "0.9525"),
        1_000_000: (0.97489, 0.000005, "0.97489"),
    },
    "loss": {
        1000: (7.80e-2, 0.005e-2, "7.80e-2"),
        10_000: (1.328e-3, 0.0005e-3, "1.328e-3"),
        100_000: (1.025e-4, 0.0005e-4, "1.025e-4"),
        1_000_000: (1.0010e-5, 0.00005e-5, "1.0010e-5"),
    },
}


def check(results):
    """Measure attention and loss from the published start at given steps, and which tokens win in the end."""
    every = {cell.name: cell for cell in cells(results["study"])}
    for metric, printed in PRINTED.items():
        for step, (value, digit, published) in printed.items():
            text = f"{metric.replace('_', ' ')} after {step:,} steps"
            samples = at(every["published"], "descent", metric, step)
            about = {"expected": around(value, digit), "published": published}
            yield mean(f"{metric}.{step}", text, samples, **about)
    for name, cell in every.items():
        first = at(cell, "descent", "top_value", 0)
        last = cell.records.query("phase == 'flow'")["step"].max()
        text = f"{NAMES[name]}: share of starts in which the token with the largest initial value wins"
        wins = at(cell, "flow", "top_score", last) == first
        yield share(f"{name}.wins", text, wins, expected=at_least(0.5), published="it does, in one run")
        text = f"{NAMES[name]}: attention on other tokens at the end of the flow"
        left = at(cell, "flow", "attention_left", last)
        yield mean(f"{name}.left", text, left, expected=around(0.0, 1e-9), published="tends to 0")
        text = f"{NAMES[name]}: 1 - cos between p and its limit at the end of the flow"
        away = at(cell, "flow", "p_one_minus_cosine", last)
        yield mean(f"{name}.distance", text, away, expected=around(0.0, 1e-3))


def at(cell, phase, metric, step):
    """Return a metric at a step of a phase, (S,)."""
    rows = cell.records.query("phase == @phase and metric == @metric and step == @step")
    return rows.sort_values("seed")["value"].to_numpy()
