"""What the package hands to the textbook: arrays of a seed, the order of minibatches, and the records."""

from functools import cache

import numpy as np


def run(study, folder):
    """Run a study without a report, and return its results."""
    return study.run(folder, quiet=True, report=False)


def corpus_of(data):
    """Return the sequences of a corpus as lists of token ids, with their labels."""
    counts = np.asarray(data.counts())
    sequences = [np.repeat(np.arange(len(row)), row).tolist() for row in counts]
    return list(zip(sequences, np.asarray(data.targets).tolist(), strict=True))


def splits_of(results, seed, cell):
    """Return the corpora of a seed: "train", and "test" and "validation" where the study has them."""
    splits = results.dataset(seed=seed, cell=cell)
    named = {name: getattr(splits, name) for name in ("train", "test", "validation")}
    return {name: corpus_of(data) for name, data in named.items() if data is not None}


def start_of(results, seed, cell):
    """Return the initial parameters; the read-out has an axis of outputs also for two classes."""
    start = vars(results.params(seed=seed, cell=cell, step=0))
    params = {name: np.asarray(x, float) for name, x in start.items()}
    two_classes = params["v"].ndim == params["p"].ndim
    return params | ({"v": params["v"][..., None]} if two_classes else {})


@cache
def batches_of(study, seed, cell, phase):
    """Return the examples in the minibatch of every step of a phase."""
    return study.minibatches(seed, cell, phase=phase).tolist()


def records_of(results):
    """Return {(cell, seed, phase, step, metric): value}."""
    columns = (results.records[name] for name in ("cell", "seed", "phase", "step", "metric", "value"))
    return {tuple(key): value for *key, value in zip(*(x.tolist() for x in columns), strict=True)}
