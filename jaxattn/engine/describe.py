"""What a corpus looks like, as small tables."""

import jax
import numpy as np
import pandas as pd

from jaxattn.data.corpus import Corpus, class_labels
from jaxattn.data.text import Progress
from jaxattn.engine.program import load, seed_keys
from jaxattn.study.definition import Definition


def corpus(study: Definition, number: int, progress: Progress) -> list[tuple[str, pd.DataFrame]]:
    """Describe the corpus of a study, of seed 0 if every seed has its own.

    Args:
        study: the study; of its axes only the base setting is shown.
        number: how many tokens to list on each side.
        progress: told how far the reading is.

    Returns:
        Titles and tables: sizes, length quantiles, step sizes, the most important tokens.
    """
    with jax.enable_x64(study.dtype == "float64"):
        loaded = load(study.base, seed_keys([0])[0], progress, {})
        held = loaded.splits if loaded.shared else jax.tree.map(lambda x: x[0], loaded.splits)
        every = {"train": held.train, "validation": held.validation, "test": held.test}
        splits = {name: split for name, split in every.items() if split is not None}
        sizes = pd.DataFrame([_sizes(name, split) for name, split in splits.items()])
        quantiles = pd.DataFrame([_quantiles(name, split) for name, split in splits.items()])
        tokens = jax.tree.map(np.asarray, held.tokens)
    tables = [("Sizes", sizes), ("Sequence lengths (quantiles)", quantiles)]
    title = "One step on E: the largest |E·v| that a step size gives; begin with 3"
    tables.append((title, _step_sizes(tokens.alpha)))
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
            tables.append((f"Tokens with the {side} average signed frequency{of_class}", listed))
    return tables


def _step_sizes(alpha: np.ndarray) -> pd.DataFrame:
    """Invert the one-step law: |E_s·v| = η0 |α_s| / 2 for two classes and η0 |α_s| for K, as ‖v‖ = 1.

    At 3 the loss is no longer that of the start, and attention, from scores that the next phase makes of
    these values, can tell tokens apart; far below, nothing is written into E, and far above, logits saturate.
    """
    share = np.abs(alpha).max() / (2 if alpha.shape[1] == 1 else 1)
    sizes = [{"largest |E·v|": x, "step_size": float(f"{x / share:.2g}")} for x in (1.0, 3.0, 10.0)]
    return pd.DataFrame(sizes if share else [])


def _sizes(name: str, split: Corpus) -> dict[str, object]:
    labels = class_labels(np.arange(split.num_classes), split.num_classes)
    shares = {
        f"label {name}": np.mean(np.asarray(split.labels) == label)
        for name, label in zip(split.class_names or labels, labels, strict=True)
    }
    return {
        "split": name,
        "sequences": f"{split.num_sequences:,}",
        "tokens": f"{int(np.asarray(split.lengths, np.int64).sum()):,}",
        "distinct pairs": f"{int((np.asarray(split.bags.count) > 0).sum()):,}",
        "vocabulary": f"{split.vocab_size:,}",
        **{label: f"{100 * share:.1f} %" for label, share in shares.items()},
    }


def _quantiles(name: str, split: Corpus) -> dict[str, object]:
    at = (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)
    values = np.quantile(np.asarray(split.lengths), at)
    return {"split": name, **{f"{100 * q:.0f} %": int(x) for q, x in zip(at, values, strict=True)}}
