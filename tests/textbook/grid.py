"""Cells of a sweep file: blocks, zipped and product axes, lists of cells, and excluded cells."""

import copy
import itertools

# Keys that a table keeps if a block changes its kind.
_MODEL = {
    "one_layer": (),
    "mlp": ("weights",),
    "key_query": ("weights",),
    "two_layer": ("residual",),
    "two_layer_weights": ("residual",),
    "multi_head": ("heads",),
}
_LOSS = ("classification", "logistic", "cross_entropy", "exponential", "squared", "hinge")
KEYS = {kind: ("dim", "init", *own) for kind, own in _MODEL.items()}
KEYS |= dict.fromkeys(_LOSS, ("smoothing",)) | {"one_step": ("name", "step_size", "train")}
_SIZES = ("vocab_size", "relevant", "length", "sequences", "test_sequences", "num_classes")
KEYS |= {"topics": (*_SIZES, "topic_words"), "multi_relevant": (*_SIZES, "relevant_per_sequence")}


def cells(tables):
    """Return (axis values, tables) of every cell in order; the last axis varies fastest."""
    found = []
    for name, block in tables.get("blocks", {}).items() or [("", {})]:
        own = merge({key: x for key, x in tables.items() if key != "blocks"}, block)
        axes, zips = flat(own.get("axes", {})), flat(own.get("zip", {}))
        rows = [dict(zip(zips, values, strict=True)) for values in zip(*zips.values(), strict=True)] or [{}]
        points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
        listed = [flat(cell) for cell in own.get("cells", [])] or [{}]
        excluded = [flat(cell) for cell in own.get("exclude", [])]
        for cell, row, point in itertools.product(listed, rows, points):
            swept = cell | row | point
            if not any(all(swept.get(key) == x for key, x in one.items()) for one in excluded):
                found.append((({"block": name} if name else {}) | swept, assigned(own, swept)))
    return found


def zipped(tables, key):
    """Return a swept key and the keys that vary together with it in some block."""
    grids = [flat(each.get("zip", {})) for each in (tables, *tables.get("blocks", {}).values())]
    return {key}.union(*(own for own in grids if key in own))


def merge(tables, changes):
    """Return tables with the changes of a block; a table with a new kind keeps the keys of that kind."""
    kind = changes.get("kind", tables.get("kind"))
    result = copy.deepcopy(tables)
    if kind != tables.get("kind"):
        result = {key: x for key, x in result.items() if key in KEYS[kind]}
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(old, list) and isinstance(value, dict):
            places = {phase["name"]: k for k, phase in enumerate(old)}
            for name, change in value.items():
                old[places[name]] = merge(old[places[name]], change)
        else:
            both = isinstance(value, dict) and isinstance(old, dict)
            result[key] = merge(old, value) if both else value
    return result


def flat(tables, prefix=""):
    """Return nested tables as {dotted key: value}."""
    found = {}
    for key, value in tables.items():
        inner = flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
        found |= inner
    return found


def assigned(tables, settings):
    """Return tables with the swept keys set, parents first; a phase is addressed by its name or number."""
    result = copy.deepcopy(tables)
    for key, value in sorted(settings.items(), key=lambda item: item[0].count(".")):
        *path, last = key.split(".")
        inner = result
        for part in path:
            if isinstance(inner, list):
                names = [phase["name"] for phase in inner]
                inner = inner[names.index(part) if part in names else int(part)]
            else:
                if isinstance(inner.get(part), str):
                    inner[part] = {"kind": inner[part]}
                inner = inner.setdefault(part, {})
        inner[last] = value
    return result
