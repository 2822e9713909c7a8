"""Tables that describe a study's data."""

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import pandas as pd

from jaxattn.base import Dataset, Progress
from jaxattn.core import backend
from jaxattn.core.errors import from_user_code
from jaxattn.data.corpus import Corpus, class_labels
from jaxattn.data.splits import Splits
from jaxattn.lab.api import Study
from jaxattn.lab.diagnosis.model_statistics import suggested_count
from jaxattn.lab.study import toml
from jaxattn.lab.study.definition import Definition
from jaxattn.lab.study.seed import seed_dataset
from jaxattn.theory.one_step_law import advise

# Default model and phases for a sweep file that contains only a data table.
_ANY = {
    "model": {"kind": "one_layer", "dim": "inf"},
    "phases": [{"kind": "one_step", "name": "embed", "step_size": 1.0}],
}


def read_data_sweep(sweep: Path, overrides: Sequence[str] = ()) -> Study:
    """Read a sweep file that may omit the model and the phases; see `toml.read_sweep`."""
    return toml.read_sweep(sweep, overrides, made=lambda tree, names: Study.from_tables(_ANY | tree, names))


def describe_data(study: Definition, number: int, progress: Progress) -> list[tuple[str, pd.DataFrame]]:
    """Describe a study's data, ignoring its axes. Data sampled per seed are described for seed 0.

    Returns:
        A list of (title, table) pairs. The first table shows sizes. For bags of tokens, it is followed by
        length quantiles, a recommended step size for one step on E, and the `number` tokens of highest
        and of lowest average signed frequency.
    """
    with from_user_code(study.names.files(study.custom_kinds), "data"):
        loaded = seed_dataset(study.base.data, 0, study.dtype, progress=progress)
    held = loaded.splits
    with backend.precision(study.dtype):
        every = {"train": held.train, "validation": held.validation, "test": held.test}
        splits = {name: split for name, split in every.items() if split is not None}
        sizes = pd.DataFrame([_sizes(name, split) for name, split in splits.items()])
        if not isinstance(held.train, Corpus):
            return [("Sizes", sizes)]
        quantiles = pd.DataFrame([_quantiles(name, split) for name, split in splits.items()])
        tokens = jax.tree.map(np.asarray, held.tokens)
        tables = [("Sizes", sizes), ("Sequence lengths (quantiles)", quantiles), _one_step(study, held)]
    classes = tokens.alpha.shape[1]
    for k in range(classes):
        alpha = tokens.alpha[:, k]
        order = np.argsort(-alpha, kind="stable")
        sides = {"highest": order[:number], "lowest": order[::-1][:number]}
        for side, ids in sides.items():
            listed = pd.DataFrame(
                {
                    "token": [loaded.tokens[i] for i in ids],
                    "count": tokens.count[ids].astype(int),
                    "alpha": alpha[ids].astype(float),
                    "posterior difference": tokens.posterior_difference[ids, k].astype(float),
                }
            )
            of_class = f" of class {(held.train.class_names or range(classes))[k]}" if classes > 1 else ""
            tables.append((f"Tokens of {side} average signed frequency (alpha){of_class}", listed))
    return tables


def _one_step(study: Definition, held: Splits) -> tuple[str, pd.DataFrame]:
    """Return a table title and a table that compares step sizes for one step on E.

    The title states the recommended step size, or why there is none.
    """
    setting, tokens = study.base, held.tokens
    least, count = setting.probes.important, setting.probes.min_count
    important = np.asarray(tokens.important(least, count))
    which = f"|posterior difference| ≥ {least:g}, at least {count} occurrences"
    dim = float(setting.model.dim or np.inf)
    alpha = tokens.alpha[:, 0] if tokens.alpha.shape[1] == 1 else tokens.alpha
    advice = advise(held.train, alpha, important, tokens.count > 0, dim)
    if advice is None:
        large = np.abs(np.asarray(tokens.posterior_difference)).max(axis=1) >= least
        moving = large & (np.abs(np.asarray(tokens.alpha)).max(axis=1) > 0)
        lower = suggested_count(np.asarray(tokens.count)[moving])
        remedy = f"; set probes.min_count = {lower}" if 0 < lower < count else ""
        title = f"One step on E: no advice, because no important token ({which}) has nonzero α{remedy}"
        return title, pd.DataFrame()
    start = float(f"{advice.step_size:.2g}")
    sizes = [start / 4, start, 4 * start]
    table = pd.DataFrame(
        {
            "step_size": sizes,
            "|E·v| of important tokens": [x * advice.important for x in sizes],
            "spread of the other tokens": [float(np.hypot(advice.noise, x * advice.others)) for x in sizes],
            "ratio": [advice.ratio(x) for x in sizes],
            "size of logits": [x * advice.logits for x in sizes],
        }
    )
    most = f"{advice.important / advice.others:.2g}" if advice.others else "any number of"
    bound = f"the median |E·v| of important tokens ({important.sum():,} with {which})"
    limit = f"{most} times the spread of the other tokens"
    result = (
        f"Steps of this order can make E·p U-shaped: as the step size grows, {bound} approaches {limit}"
        if advice.is_enough
        else f"No step size makes E·p U-shaped on these data: {bound} is at most {limit}"
    )
    larger = "compare larger values, which can train p in fewer steps"
    return f"One step on E, d = {dim:g}: start with step_size = {start:g}; {larger}. {result}", table


def _sizes(name: str, split: Dataset) -> dict[str, object]:
    if not isinstance(split, Corpus):
        arrays = {field: f"{x.dtype} {tuple(x.shape)}" for field, x in split.arrays()}
        return {"split": name, "examples": f"{split.num_examples:,}", **arrays, **_shares(split, None)}
    return {
        "split": name,
        "sequences": f"{split.num_examples:,}",
        "tokens": f"{int(np.asarray(split.lengths, np.int64).sum()):,}",
        "distinct pairs": f"{int((np.asarray(split.bags.count) > 0).sum()):,}",
        "vocabulary": f"{split.vocab_size:,}",
        **_shares(split, split.class_names),
    }


def _shares(split: Dataset, names: Sequence[str] | None) -> dict[str, object]:
    """Return the percentage of targets in each class, or {} if the targets are not classes."""
    if (classes := split.num_classes) is None:
        return {}
    labels = class_labels(np.arange(classes), classes)
    shares = (np.mean(np.asarray(split.targets) == label) for label in labels)
    return {
        f"label {name}": f"{100 * share:.1f} %" for name, share in zip(names or labels, shares, strict=True)
    }


def _quantiles(name: str, split: Corpus) -> dict[str, object]:
    at = (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)
    values = np.quantile(np.asarray(split.lengths), at)
    return {"split": name, **{f"{100 * q:.0f} %": int(x) for q, x in zip(at, values, strict=True)}}
