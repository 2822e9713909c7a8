"""Lemma 4.1 and its form for K classes: how far one step on E is from the one-step law."""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxattn import dynamics, theory
from jaxattn.claims import settings
from jaxattn.claims.rows import Claim, Row, around, mean
from jaxattn.claims.settings import Setting
from jaxattn.data.corpus import Corpus
from jaxattn.models.one_layer import Params
from jaxattn.results.fits import powers

POWER = around(-0.5, 0.05)


def rows(setting: Setting, seeds: Sequence[int], dims: Sequence[int]) -> list[Row]:
    """Measure the power of d in the error of the one-step law.

    The error of values is max_s |(E_s¹ - E_s⁰)·v - η0 α_s/2| / η0 (for K classes also the largest over
    classes), that of embeddings max_s ‖E_s¹ - E_s⁰ - (η0/2) α_s v‖ / η0. Both are linear in η0.

    Args:
        setting: data and sizes; its d is not used.
        seeds: the S seeds.
        dims: the d to measure at, two or more.

    Returns:
        The power in both errors, and the constant error · √d at the largest d.

    Source:
        Lemma 4.1 of arXiv 2505.17282; K classes from its public review thread.
    """
    errors = np.stack([one_step_errors(replace(setting, dim=dim), seeds) for dim in dims], axis=-1)
    name = "MC" if setting.num_classes > 2 else "L4.1"
    span = f"d = {', '.join(map(str, dims))}"
    where = setting.words.partition(", d = ")[0] + f", {span}"
    found = []
    for measured, error in zip(("values E·v", "embeddings E"), errors, strict=True):
        claim = Claim(name, f"the error of the one-step law in the {measured} falls like d^(-1/2)", where)
        found.append(mean(claim, f"power of d in the error of {measured}", powers(dims, error), POWER))
    largest = Claim(name, "the constant of the one-step law", where, promised=False)
    constant = errors[0, :, -1] * np.sqrt(dims[-1])
    return [*found, mean(largest, f"error of values · √d at d = {dims[-1]}", constant)]


def one_step_errors(setting: Setting, seeds: Sequence[int]) -> np.ndarray:
    """Measure the error of the one-step law in the values and in the embeddings: (2, S) float64."""
    with jax.enable_x64(True):
        params, corpora = settings.initial(setting, seeds)
        return np.stack(_errors(params, corpora))


@jax.jit
def _errors(params: Params, corpora: Corpus) -> tuple[Array, Array]:
    return jax.vmap(errors_of)(params, corpora)


def errors_of(params: Params, corpus: Corpus) -> tuple[Array, Array]:
    """Take one step of size 1 and measure its error in the values and in the embeddings, two scalars."""
    change = dynamics.one_step(params, corpus, step_size=1.0).E - params.E
    predicted = theory.predicted_values(corpus, 1.0)
    along = jnp.outer(predicted, params.v) if predicted.ndim == 1 else predicted @ params.v.T
    values = theory.one_step_error(change @ params.v, corpus, 1.0)
    return values, jnp.sqrt(jnp.square(change - along).sum(axis=1)).max()
