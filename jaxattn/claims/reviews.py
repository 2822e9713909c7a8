"""The claims that need no Assumption 1, on labelled texts such as the IMDB reviews: L4.1 and L4.2."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxattn import dynamics
from jaxattn.claims.one_step import POWER, errors_of
from jaxattn.claims.rows import Claim, Row, mean
from jaxattn.claims.settings import seed_keys
from jaxattn.data.corpus import Corpus
from jaxattn.models import one_layer
from jaxattn.results.fits import powers


@dataclass(frozen=True)
class TextPlan:
    """How much is run on texts; seeds differ in their parameters only.

    Attributes:
        law_dims: d at which the error of the one-step law is measured.
        law_seeds: most seeds of the one-step law.
        dim: d of the flow.
        step_size: η0 of the one step before it.
        rate: step of the descent that stands for the flow, small enough for IMDB.
        steps: its steps.
        flow_seeds: most seeds of the flow.
    """

    law_dims: tuple[int, ...] = (128, 512, 2048)
    law_seeds: int = 32
    dim: int = 2048
    step_size: float = 5000.0
    rate: float = 0.25
    steps: int = 1200
    flow_seeds: int = 3


def one_step_rows(corpus: Corpus, name: str, seeds: Sequence[int], plan: TextPlan) -> list[Row]:
    """Measure the power of d in the error of the one-step law on texts.

    Of many thousand tokens the most frequent one decides the largest error, so that a seed's error is about
    the size of a single normal variable: the interval is wide.

    Args:
        corpus: the training texts, two classes.
        name: what to call them.
        seeds: the seeds; the first `plan.law_seeds` of them are used.
        plan: how much to run.

    Returns:
        The power in the errors of values and of embeddings.

    Source:
        Lemma 4.1 of arXiv 2505.17282.
    """
    _, keys = seed_keys(seeds[: plan.law_seeds])
    errors = np.asarray([[_errors(key, corpus, dim) for dim in plan.law_dims] for key in keys])
    where = f"{_size(corpus, name)}, d = {', '.join(map(str, plan.law_dims))}"
    rows = []
    for which, measured in enumerate(("values E·v", "embeddings E")):
        claim = Claim("L4.1", f"the error of the one-step law in the {measured} falls like d^(-1/2)", where)
        power = powers(plan.law_dims, errors[:, :, which])
        rows.append(mean(claim, f"power of d in the error of {measured}", power, POWER))
    return rows


def flow_rows(corpus: Corpus, name: str, seeds: Sequence[int], plan: TextPlan) -> list[Row]:
    """Measure how far ‖p‖ grows on texts, by small steps of gradient descent in place of the flow.

    Neither growth without bound nor a point of rest can be seen in a run of this length: the rows are
    promised and stay undecided.

    Args:
        corpus: the training texts, two classes.
        name: what to call them.
        seeds: the seeds; the first `plan.flow_seeds` of them are used.
        plan: how much to run.

    Returns:
        ‖p‖ at the end, and its growth per e-fold of time there, which is 0 at a point of rest.

    Source:
        Lemma 4.2 of arXiv 2505.17282.
    """
    _, keys = seed_keys(seeds[: plan.flow_seeds])
    norm, growth = np.asarray([_descend(key, corpus, plan) for key in keys]).T
    time = plan.rate * plan.steps
    where = (
        f"{_size(corpus, name)}, d = {plan.dim}, η0 = {plan.step_size:g}; {plan.steps} steps of {plan.rate:g}"
    )
    claim = Claim("L4.2", "‖p‖ grows without bound, like log t", where)
    return [
        mean(claim, f"‖p‖ at t = {time:g}, from 1 at the start", norm, between=(0.0, math.inf)),
        mean(claim, f"d‖p‖/d log t at t = {time:g}", growth),
    ]


@partial(jax.jit, static_argnums=2)
def _errors(key: Array, corpus: Corpus, dim: int) -> Array:
    return jnp.stack(errors_of(one_layer.init(key, vocab_size=corpus.vocab_size, dim=dim), corpus))


@partial(jax.jit, static_argnums=2)
def _descend(key: Array, corpus: Corpus, plan: TextPlan) -> Array:
    params = one_layer.init(key, vocab_size=corpus.vocab_size, dim=plan.dim)
    params = dynamics.one_step(params, corpus, step_size=plan.step_size)
    algorithm = dynamics.descent(dynamics.optimizer("sgd", plan.rate), train=("p",))
    params = dynamics.run(algorithm, algorithm.init(params), corpus, plan.steps).params
    _, gradients = dynamics.loss_and_gradients(params, corpus, ("p",))
    norm = jnp.linalg.norm(params.p)
    outward = -(params.p @ gradients["p"]) / norm
    return jnp.stack([norm, plan.rate * plan.steps * outward])


def _size(corpus: Corpus, name: str) -> str:
    return f"{name}, V = {corpus.vocab_size}, n = {corpus.num_sequences}"
