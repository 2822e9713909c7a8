"""A custom measure."""

from jaxattn.lab.books import Finding, Measured
from jaxattn.lab.results import judge


def least(results, item, *, metric):
    """Measure the smallest value of a metric over the cells of every seed."""
    records = results.records[results.records["metric"] == metric].dropna(subset="value")
    samples = records.groupby("seed")["value"].min()
    return Measured([Finding(f"least {metric}", judge.mean(samples), f"{len(samples)} seeds")], {})
