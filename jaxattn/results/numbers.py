"""Numbers as text: three digits, values of settings, a value with its interval; what scale they want."""

import math
from collections.abc import Sequence

import numpy as np


def format_number(value: float) -> str:
    """Write a number for reading: three significant digits, no padded exponent."""
    if not np.isfinite(value):
        return "–"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.0f}" if value == 0 or abs(value) >= 100 else f"{value:#.3g}"
    digits, _, exponent = f"{value:.2e}".partition("e")
    return f"{digits}e{int(exponent)}"


def setting(value: object) -> str:
    """Write an axis value for reading; nothing where a cell does not have that axis."""
    if value is None or value != value:
        return ""
    if value == "inf":
        return "∞"
    return f"{value:g}" if isinstance(value, float) else str(value)


def in_order(value: object) -> tuple[float, str]:
    """Sort axis values with this key: numbers by size, "inf" last of them, words after that."""
    try:
        return float(value), ""  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.inf, str(value)


def brief(x: float) -> str:
    """Write a round number for reading: 1e-9, 200, 0.5."""
    digits, e, exponent = f"{x:g}".partition("e")
    return f"{digits}e{int(exponent)}" if e else digits


def interval(value: float, low: float, high: float) -> str:
    """Write a value and its interval, if it has one, with three digits each."""
    return (
        f"{format_number(value)} [{format_number(low)}, {format_number(high)}]"
        if np.isfinite(low)
        else format_number(value)
    )


def with_interval(value: float, low: float, high: float) -> str:
    """Write a number and its interval with two digits of the interval's half-width, six decimals at most."""
    half = (high - low) / 2
    if not (half > 0 and 1e-3 <= abs(value) < 1e5):
        return interval(value, low, high)
    decimals = min(max(1 - math.floor(math.log10(half)), 0), 6)
    return f"{value:.{decimals}f} [{low:.{decimals}f}, {high:.{decimals}f}]"


def by_factors(values: Sequence[int | float]) -> bool:
    """Whether values grow by factors rather than evenly, as a logarithmic axis shows them."""
    x = np.asarray(values, float)
    return bool(x[0] > 0 and len(x) > 2 and np.ptp(np.diff(np.log(x))) < np.ptp(np.diff(x)) / x[-1])
