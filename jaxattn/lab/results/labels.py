"""Display names of quantities, settings and numbers in figures, tables and files."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from jaxattn.core.errors import InputError, similar


def format_number(value: float) -> str:
    """Format a number with at least three significant digits and an unpadded exponent; "–" if not finite."""
    if not np.isfinite(value):
        return "–"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.0f}" if value == 0 or abs(value) >= 100 else f"{value:#.3g}"
    digits, _, exponent = f"{value:.2e}".partition("e")
    return f"{digits}e{int(exponent)}"


def setting(value: object) -> str:
    """Format an axis value for display, or return "" if it is None or NaN, as for a cell without the axis."""
    if value is None or value != value:
        return ""
    if value == "inf":
        return "∞"
    return f"{value:g}" if isinstance(value, float) else str(value)


def axis_sort_key(value: object) -> tuple[float, str]:
    """Return a sort key that orders axis values: numbers in ascending order, then "inf", then strings."""
    try:
        return float(value), ""  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.inf, str(value)


def brief(x: float) -> str:
    """Format a number with at most six significant digits and without trailing zeros, such as 1e-9 or 0.5."""
    digits, e, exponent = f"{x:g}".partition("e")
    return f"{digits}e{int(exponent)}" if e else digits


def interval(value: float, low: float, high: float) -> str:
    """Format a value, followed by its interval unless the bounds are NaN; see `format_number`."""
    return (
        f"{format_number(value)} [{format_number(low)}, {format_number(high)}]"
        if np.isfinite(low)
        else format_number(value)
    )


def with_interval(value: float, low: float, high: float) -> str:
    """Format a number and its interval, rounded to two significant digits of the interval's half-width.

    At most six decimals are shown. Very small or large numbers, and numbers without an interval, are
    formatted as in `interval`.
    """
    half = (high - low) / 2
    if not (half > 0 and 1e-3 <= abs(value) < 1e5):
        return interval(value, low, high)
    decimals = min(max(1 - math.floor(math.log10(half)), 0), 6)
    return f"{value:.{decimals}f} [{low:.{decimals}f}, {high:.{decimals}f}]"


def duration(seconds: float) -> str:
    """Format a duration in hours, minutes or seconds."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def grow_by_factors(values: Sequence[int | float]) -> bool:
    """Return True if the values are spaced geometrically rather than evenly, as on a log axis."""
    x = np.asarray(values, float)
    return bool(x[0] > 0 and len(x) > 2 and np.ptp(np.diff(np.log(x))) < np.ptp(np.diff(x)) / x[-1])


AXES = MappingProxyType(
    {
        "model.dim": "$d$",
        "data.vocab_size": "$V$",
        "data.length": "$T$",
        "data.sequences": "$n$",
    }
)
# Captions and figure labels for token scores, keyed by model kind, for models whose scores differ from E·p.
SCORES = MappingProxyType(
    {
        "key_query": ("E·W p", r"$E_s^\top W p$"),
        "two_layer_weights": ("E·W2 p", r"$E_s^\top W_2\, p$"),
        "multi_head": ("E·p, averaged over heads,", r"$E_s^\top \bar p$"),
    }
)
# Maximum label length in characters; matplotlib takes minutes to parse and lay out longer labels.
LONGEST_LABEL = 200
CUSTOM_SCORES = "the score", "score of token $s$"
VALUES = MappingProxyType({"Ev": r"$E_s^\top v$", "Ep": r"$E_s^\top p$"})


def literal(text: str) -> str:
    """Escape dollar signs, so that matplotlib does not interpret the string as a formula."""
    return text.replace("$", r"\$")


def formula(text: str) -> str:
    """Return a user-defined label for a figure. Invalid formulas are escaped, and long labels shortened."""
    if "$" not in text or len(text) > LONGEST_LABEL:
        return short_name(text, LONGEST_LABEL)
    from matplotlib.mathtext import MathTextParser  # slow to import

    try:
        MathTextParser("path").parse(text)
    except ValueError:
        return literal(text)
    return text


def metric_label(metric: str, labels: Mapping[str, str]) -> str:
    """Return the figure label for a metric: declared by a probe or phase, or generated from its name."""
    if metric in labels:
        return formula(str(labels[metric]))
    if found := re.fullmatch(r"spearman_Ev_(\w+)", metric):
        return f"Spearman of {VALUES['Ev']}, {short_name(found[1], LONGEST_LABEL)}"
    return short_name(metric.replace("_", " "), LONGEST_LABEL)


def unknown_metric(metric: str, recorded: Iterable[Any]) -> InputError:
    """Build the InputError for an unknown metric, suggesting the closest name or listing all names."""
    if "," in metric:
        return InputError(
            f"metric {metric!r}: separate names with spaces, not commas: {metric.replace(',', ' ')!r}"
        )
    # There are many bin metrics, so list them under a single name.
    known = sorted({re.sub(r"_bin_\d+$", "_bin_K", str(name)) for name in recorded})
    if near := similar(metric, known):
        return InputError(f"metric {metric!r}: not recorded by the run; did you mean {near!r}?")
    return InputError(f"metric {metric!r}: not recorded; the run recorded {', '.join(known)}")


def axis_label(axis: str) -> str:
    """Return the figure label for a swept key: the paper's symbol, or else the key's last component."""
    return AXES.get(axis, literal(axis.rpartition(".")[2].replace("_", " ")))


def tick_label(value: object) -> str:
    """Format an axis value for a figure, with a typographic minus sign."""
    if isinstance(value, float) and math.isfinite(value):
        return minus(brief(value))
    return minus(str(value)) if isinstance(value, int) else literal(setting(value))


def settings_label(settings: Mapping[str, Any]) -> str:
    """Return the legend label for a cell, composed of its settings."""
    names = [axis_label(axis) for axis in settings]
    if len(set(names)) < len(names):
        names = [literal(axis) for axis in settings]
    # Label a block by its name alone, without the key `block`.
    return ", ".join(
        tick_label(value) if name == "block" else f"{name} = {tick_label(value)}"
        for name, value in zip(names, settings.values(), strict=True)
    )


def evenly_spaced(items: Sequence[int], maximum: int) -> list[int]:
    """Return at most `maximum` evenly spaced entries, including the first and the last entry."""
    places = np.linspace(0, len(items) - 1, min(len(items), maximum)).round().astype(int)
    return [items[location] for location in places]


NOT_HELD = "no random numbers are held"


def held_text(hold: Sequence[str], varies: Sequence[str]) -> str:
    """Return a phrase that lists the sources of randomness held at seed 0 and those that vary.

    Return "" if none is held.
    """
    if not hold:
        return ""
    held, others = (" and ".join(filter(None, (", ".join(x[:-1]), *x[-1:]))) for x in (hold, varies))
    verb = "varies" if list(varies) == ["start"] else "vary"
    return f"{held} held at seed 0; {others or 'no random numbers'} {verb} over seeds"


def ranges_text(numbers: Sequence[int]) -> str:
    """Format ascending integers as a range like "0 to 5" if consecutive, else as a list like "2, 5"."""
    if len(numbers) == numbers[-1] - numbers[0] + 1 > 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def setting_columns(keys: Iterable[str], metrics: Collection[str]) -> dict[str, str]:
    """Return a column name for each key: the key, or "KEY (setting)" if a metric has this name."""
    return {key: f"{key} (setting)" if key in metrics else key for key in keys}


def seed_words(counts: Iterable[int]) -> str:
    """Format one or more numbers of seeds as "5 seeds", or as "3 to 5 seeds" if they differ."""
    few, many = min(counts := list(counts)), max(counts)
    if few != many:
        return f"{few} to {many} seeds"
    return "1 seed" if many == 1 else f"{many} seeds"


def short_name(name: str, longest: int = 24) -> str:
    """Shorten a user-defined name to at most `longest` characters, and escape its dollar signs."""
    return literal(name if len(name) <= longest else name[: longest - 1] + "…")


def minus(text: str) -> str:
    """Replace all hyphens with minus signs, as in tick labels."""
    return text.replace("-", "\N{MINUS SIGN}")


def file_name(*parts: object) -> str:
    """Join words into a portable file name."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", "_".join(str(part) for part in parts))
