"""Estimate the coverage of 95 % intervals on normal and skewed data.

python benchmarks/coverage.py
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats

from jaxattn.core.settings import markdown_table
from jaxattn.lab.results.intervals import clopper_pearson, geometric, interquartile, jackknife, student_t

LAWS = {"normal": stats.norm(), "exponential": stats.expon(), "lognormal": stats.lognorm(1)}
SEEDS = (3, 5, 8, 10, 20, 41, 100)
SHARES = (0.5, 0.9, 0.99)
# Values and weights of a distribution with ties, such as the fraction of successes in two sequences. Then the
# bins and noise level of a curve with independent noise for each seed.
TIED, WEIGHTS = np.array([0, 0.5, 1]), (0.05, 0.15, 0.8)
BINS, NOISE = np.linspace(-1, 1, 20), 8.0


def main() -> None:
    """Print a Markdown table of the coverage of each kind of interval at each sample size."""
    rng = np.random.default_rng(0)
    rows: dict[str, Callable[[int], float | None]] = {}
    for name, law in LAWS.items():
        rows[f"Student's t, mean, {name}"] = lambda n, law=law: covered(
            student_t(law.rvs((20_000, n), random_state=rng)), law.mean()
        )
    lognormal = LAWS["lognormal"]
    rows["t of logarithms, geometric mean, lognormal"] = lambda n: covered(
        geometric(lognormal.rvs((20_000, n), random_state=rng)), 1.0
    )
    rows["Student's t, mean, of 0, ½ and 1 (.05, .15, .8)"] = lambda n: tied_coverage(n, rng)
    rows["jackknife, correlation of the mean curve of 20 bins"] = lambda n: curve_coverage(n, rng)
    for name, law in LAWS.items():
        rows[f"interquartile mean, {name}"] = lambda n, law=law: interquartile_coverage(law, n, rng)
    for p in SHARES:
        rows[f"Clopper-Pearson, share of {p:g} (exact)"] = lambda n, p=p: fraction_coverage(p, n)
    cells = [[name, *(formatted(row(n)) for n in SEEDS)] for name, row in rows.items()]
    print(markdown_table(["interval", *(f"n = {n}" for n in SEEDS)], cells))


def covered(bounds: tuple[Any, Any], truth: float) -> float:
    """Return the fraction of intervals that contain the true value."""
    return float(((bounds[0] <= truth) & (truth <= bounds[1])).mean())


def tied_coverage(n: int, rng: np.random.Generator) -> float:
    """Return the coverage of Student's t interval for the mean when the distribution has ties.

    Samples whose values are all equal are skipped.
    """
    low, high = student_t(rng.choice(TIED, (20_000, n), p=WEIGHTS))
    made = np.isfinite(low)
    return covered((low[made], high[made]), float(TIED @ WEIGHTS))


def curve_coverage(n: int, rng: np.random.Generator) -> float:
    """Return the coverage of jackknife intervals for the correlation of a mean curve with the bins.

    The curves are lines with noise. The true value is the expectation of the correlation, which is below 1
    because of the noise.
    """
    curves = BINS + NOISE * rng.normal(size=(4000, n, len(BINS)))
    total = curves.sum(axis=1, keepdims=True)
    value, left_out = correlation(total[:, 0]), correlation((total - curves) / (n - 1))
    return covered(jackknife(value, left_out.T), float(value.mean()))


def correlation(curves: Any) -> Any:
    """Return the correlation of each curve with the bins."""
    curves = curves - curves.mean(axis=-1, keepdims=True)
    return curves @ BINS / np.sqrt(np.square(curves).sum(axis=-1) * (BINS @ BINS))


def interquartile_coverage(law: Any, n: int, rng: np.random.Generator) -> float | None:
    """Return the coverage of intervals for the interquartile mean, or None if n is too small for one."""
    if n < 4:
        return None
    truth = law.ppf(np.linspace(0.25, 0.75, 20_001)).mean()
    return covered(interquartile(np.sort(law.rvs((20_000, n), random_state=rng), axis=1)), truth)


def fraction_coverage(p: float, n: int) -> float:
    """Return the exact coverage of Clopper-Pearson intervals for a fraction p, as a sum over all counts."""
    low, high = clopper_pearson(np.arange(n + 1), n)
    return float(stats.binom.pmf(np.arange(n + 1), n, p)[(low <= p) & (p <= high)].sum())


def formatted(fraction: float | None) -> str:
    """Format a coverage with three decimals, or return a dash for None."""
    return "–" if fraction is None else f"{fraction:.3f}"


if __name__ == "__main__":
    main()
