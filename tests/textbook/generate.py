"""Random small studies, by seed, as tables of a sweep file; and smaller ones of a study that fails."""

import copy

import numpy as np


def study(seed):
    """Return the tables of a random study."""
    rng = np.random.default_rng(seed)

    def choice(*options):
        return options[rng.integers(len(options))]

    classes, kind = choice(2, 2, 3), choice("one_layer", "key_query", "mlp", "two_layer", "multi_head")
    extra = {"multi_head": {"heads": 2}, "two_layer": {"residual": choice(True, False)}}
    held_out = {name: classes * choice(3, 5) for name in ("test_sequences", "validation_sequences")}
    phases = [phase(choice, rng, f"phase{k}", kind) for k in range(choice(1, 2))]
    if choice(True, False):
        phases.insert(0, {"name": "embed", "kind": "one_step", "step_size": choice(0.5, 10.0)})
    loss = choice("classification", "exponential", "squared", "hinge", "cross_entropy")
    smoothing = choice(0.0, 0.2)
    tables = {
        "name": f"random_{seed}",
        "seeds": choice(1, 1, 1, 2),
        "dtype": "float64",
        "loss": {
            "kind": "logistic" if loss == "cross_entropy" and classes == 2 else loss,
            "smoothing": smoothing,
        },
        "hold": choice([], ["data"], ["start"]),
        "data": {
            "kind": "independent",
            "vocab_size": choice(9, 13),
            "relevant": 2 * classes,
            "length": choice(3, 5),
            "sequences": classes * choice(6, 8),
            "num_classes": classes,
            "label_noise": choice(0.0, 0.2),
        }
        | held_out,
        "model": {"kind": kind, "dim": choice(3, 5)} | extra.get(kind, {}),
        "phases": phases,
        "probes": {
            "every": choice(2, 3),
            "bins": choice(0, 3, 4),
            "low": choice(-1.0, -0.5),
            "min_count": choice(1, 3),
            "important": choice(0.2, 0.5),
            "own": ["norms"],
        },
    }
    return tables | grid(choice, tables)


def grid(choice, tables):
    """Return random axes, zipped axes, listed and excluded cells, or blocks."""
    last = tables["phases"][-1]
    step = f"phases.{last['name']}.step_size"
    sizes, smoothing = [last["step_size"], 0.03], [tables["loss"]["smoothing"], 0.4]
    product = {"axes": choice({step: sizes}, {"loss.smoothing": smoothing, step: sizes})}
    match choice("product", "zip", "cells", "exclude", "blocks", "vocabularies", "kinds"):
        case "zip":
            return {
                "axes": {"data.label_noise": [0.0, 0.3]},
                "zip": {step: sizes, "loss.smoothing": smoothing},
            }
        case "cells":
            return {"axes": {}, "cells": [{step: sizes[0]}, {step: sizes[1], "data.label_noise": 0.4}]}
        case "exclude":
            one = {"loss.smoothing": 0.4, step: sizes[0]}
            return {"axes": {"loss.smoothing": smoothing, step: sizes}, "exclude": [one]}
        case "blocks":
            other = {"loss": {"kind": "squared"}, "phases": {last["name"]: {"steps": 3}}}
            return {"axes": {}, "blocks": {"first": product, "second": other}}
        case "vocabularies":
            return {"axes": {"data.vocab_size": [tables["data"]["vocab_size"], 17]}}
        case "kinds":
            # A swept table and a key in it, which is listed first.
            return {"axes": {"loss.smoothing": smoothing, "loss": ["squared", "exponential"]}}
    return product


def phase(choice, rng, name, kind):
    """Return a random phase of descent."""
    optimizer = choice("sgd", "normalized", "polyak", "adam", "adamw")
    found = {"name": name, "kind": "descent", "optimizer": optimizer, "step_size": choice(0.02, 0.1)}
    found |= {"train": choice(["p"], ["p", "v"], ["*"], ["*", "!E"]), "steps": choice(5, 8)}
    if optimizer == "polyak":
        found["loss_floor"] = choice(0.0, 0.1)
    else:
        found["schedule"] = choice("constant", "cosine", "linear", "exponential", "inverse_sqrt")
        found["warmup"] = choice(0, 0, 2)
    if optimizer in ("sgd", "normalized"):
        found |= {"momentum": choice(0.0, 0.7), "nesterov": choice(True, False)}
    if choice(True, False):
        found["batch_size"] = choice(4, 5)
    if choice(True, False):
        found |= {"patience": choice(1, 2), "check_every": choice(1, 2)}
    return found


def smaller(tables):
    """Yield tables with a part removed: an axis, a phase, a block of settings, or a seed."""
    for key in tables["axes"]:
        yield tables | {"axes": {name: x for name, x in tables["axes"].items() if name != key}}
    for part in ("zip", "cells", "exclude", "blocks"):
        if part in tables:
            yield {name: x for name, x in tables.items() if name != part}
    for k, removed in enumerate(tables["phases"]):
        used = any(key.startswith(f"phases.{removed['name']}.") for key in tables["axes"])
        if len(tables["phases"]) > 1 and not used:
            yield tables | {"phases": [phase for j, phase in enumerate(tables["phases"]) if j != k]}
        for key in ("batch_size", "patience", "schedule", "warmup", "nesterov", "momentum"):
            if key in removed:
                changed = copy.deepcopy(tables)
                del changed["phases"][k][key]
                yield changed
    if tables["hold"]:
        yield tables | {"hold": []}
    if tables["seeds"] > 1:
        yield tables | {"seeds": 1}
