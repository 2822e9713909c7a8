"""What the package hands to the textbook: arrays of a seed, the order of minibatches, and the records."""

from functools import cache

import jax
import numpy as np

import jaxattn as ja
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.engine.run import run_study
from jaxattn.lab.study.randomness import keys


def run(study, folder):
    """Run a study without a report, and return its results."""
    with Reporter(quiet=True) as reporter:
        run_study(study, folder, command="test", reporter=reporter)
    return ja.load(folder)


def corpus_of(data):
    """Return the sequences of a corpus as lists of token ids, with their labels."""
    sequences = [[] for _ in range(data.num_examples)]
    rows = (np.asarray(x) for x in (data.bags.owner, data.bags.index, data.bags.count))
    for owner, tokens, counts in zip(*rows, strict=True):
        for token, count in zip(tokens.tolist(), counts.tolist(), strict=True):
            sequences[owner] += [token] * int(count)
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
def order_of(seed, index, epoch, sequences):
    """Return the examples in the random order of an epoch of a phase, by the key of the package."""
    key = jax.random.fold_in(jax.random.fold_in(keys(seed).batches, index), epoch)
    return np.argsort(np.asarray(jax.random.permutation(key, sequences))).tolist()


def records_of(results):
    """Return {(cell, seed, phase, step, metric): value}."""
    columns = (results.records[name] for name in ("cell", "seed", "phase", "step", "metric", "value"))
    return {tuple(key): value for *key, value in zip(*(x.tolist() for x in columns), strict=True)}
