"""What is measured: studies that between them use every kind of program, at the sizes of the shipped ones."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxattn.api import Study
from jaxattn.data.corpus import Corpus, from_flat
from jaxattn.data.generators import Assumption1, Independent
from jaxattn.dynamics.descents.descent import Descent
from jaxattn.dynamics.flows.flow_phase import ExactFlow
from jaxattn.models.one_layer import OneLayer
from jaxattn.models.two_layer import TwoLayer

# IMDB with words that occur 45 times.
_REVIEWS = {"sequences": 25_000, "vocab_size": 7_813}


@dataclass(frozen=True)
class Case:
    """One thing that is measured.

    Attributes:
        name: its name.
        study: the first phase of its only cell is what is timed, from its beginning to its end.
        seeds: numbers of seeds side by side.
        steps: what its time is divided by; 1 for a path that is found at once.
    """

    name: str
    study: Study
    seeds: tuple[int, ...]
    steps: int


def reviews(*, sequences: int, vocab_size: int) -> Corpus:
    """Draw sequences as long as reviews of tokens by Zipf's law, always the same ones."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(5.2, 0.6, sequences), 10, 2_000).astype(int)
    weight = 1 / np.arange(1, vocab_size + 1)
    tokens = rng.choice(vocab_size, lengths.sum(), p=weight / weight.sum())
    return from_flat(tokens, lengths, rng.choice([-1, 1], sequences), vocab_size=vocab_size)


def _case(
    name: str, seeds: tuple[int, ...], data: Any, model: Any, phase: Any, dtype: str = "float32"
) -> Case:
    probes = {"tokens": False, "per_decade": 0}
    study = Study(name="bench", data=data, model=model, phases=[phase], probes=probes, dtype=dtype)
    return Case(name, study, seeds, 1 if isinstance(phase, ExactFlow) else phase.steps)


def _of_reviews(**sizes: int) -> Any:
    return {"kind": f"{__name__}:reviews", **(_REVIEWS | sizes)}


def _descent(steps: int, *train: str, optimizer: str = "sgd") -> Descent:
    return Descent(name="descent", train=train, optimizer=optimizer, step_size=1e-3, steps=steps)


CASES = (
    _case(
        "corpora of their own, p",
        (1, 16, 64, 256, 1024),
        Independent(vocab_size=200, relevant=40, length=16, sequences=512),
        OneLayer(dim=512),
        _descent(200, "p"),
    ),
    _case("reviews, p", (1, 16, 64), _of_reviews(), OneLayer(dim=2048), _descent(10, "p")),
    _case(
        "reviews, E and p and v by Adam",
        (1,),
        _of_reviews(),
        OneLayer(dim=2048),
        _descent(10, "E", "p", "v", optimizer="adam"),
    ),
    _case(
        "two layers, 512 reviews, E and p and v",
        (1,),
        _of_reviews(sequences=512),
        TwoLayer(dim=256),
        _descent(2, "E", "p", "v"),
    ),
    _case(
        "exact flow of p to 1e6",
        (1, 64),
        Assumption1(vocab_size=50, relevant=20, length=8, sequences=200),
        OneLayer(dim=2048),
        ExactFlow(name="flow"),
        dtype="float64",
    ),
)
