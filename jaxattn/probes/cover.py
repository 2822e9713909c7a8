"""The probe of covers: which tokens end on top of the sequences, and how far E·v is from the law there."""

from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from jaxattn.base import Phase, Probe, Task
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take
from jaxattn.probes.probe_context import ProbeContext, wants_bags


class Cover(Probe, frozen=True, kw_only=True):
    """The tokens on top of the sequences, and how far E·v is from what gradient flow on E, p and v tends to.

    With s(X) the token of X with the highest score, the first one of several, and r_eff the number of
    distinct ones, that is

        E_s·v = y_s ‖v‖²/√r_eff  on tokens on top,   0 elsewhere,

    if these are a cover: each on top under one label y_s only. Margin 1 then costs ‖E‖² + ‖v‖² = 2 √r_eff.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "cover_size": r"tokens on top, $r_\mathrm{eff}$",
        "cover_share": "sequences whose token on top has one label",
        "cover_error": r"largest $|E_s\cdot v\,\sqrt{r_\mathrm{eff}}/\Vert v\Vert^2-y_s|$ of tokens on top",
        "cover_elsewhere": r"largest $|E_s\cdot v|\,\sqrt{r_\mathrm{eff}}/\Vert v\Vert^2$ of other tokens",
        "cover_cost": r"$2\sqrt{r_\mathrm{eff}}$",
        "cover_attention": "least attention on the token on top",
    }

    def why_not(self, task: Task, phase: Phase) -> str | None:
        """Say that it wants the one-layer model on bags of two classes."""
        if (missing := wants_bags(task)) is not None:
            return missing
        if not task.model.is_one_layer:
            return "wants the one-layer model"
        return None if task.data.train.num_classes == 2 else "wants two classes"

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Measure one seed."""
        corpus, (scores, values) = context.data.train, context.scores_and_values
        token, attention = on_top(scores, corpus)
        positive, negative = (
            jnp.zeros(corpus.vocab_size, bool).at[token].max(corpus.targets == y) for y in (1, -1)
        )
        chosen, one_label = positive | negative, positive ^ negative
        size = chosen.sum().astype(values.dtype)
        ratio = values * jnp.sqrt(size) / jnp.square(context.params.v).sum()
        error = jnp.abs(ratio - jnp.where(positive, 1, -1))
        return {
            "cover_size": size,
            "cover_share": one_label[token].mean(),
            "cover_error": jnp.where(one_label.any(), jnp.where(one_label, error, 0).max(), jnp.nan),
            "cover_elsewhere": jnp.where(chosen, 0, jnp.abs(ratio)).max(),
            "cover_cost": 2 * jnp.sqrt(size),
            "cover_attention": attention.min(),
        }


def on_top(scores: Array, corpus: Corpus) -> tuple[Array, Array]:
    """Find the token with the highest score of every sequence, the first one of several.

    Args:
        scores: (V,) float.
        corpus: n sequences over V tokens.

    Returns:
        The token, (n,) int32, and the attention on it, (n,).
    """
    bags = corpus.bags
    index, held = bags.index.astype(jnp.int32), bags.count > 0
    entries = jnp.where(held, take(scores, index), -jnp.inf)
    top = bags.spread(bags.max(entries))
    leads = held & (entries == top)
    token = -bags.max(jnp.where(leads, -index.astype(scores.dtype), -jnp.inf)).astype(jnp.int32)
    weight = bags.count * jnp.exp(entries - top)
    first = leads & (index == bags.spread(token))
    own, whole = bags.sum(jnp.where(first, weight, 0), weight)
    return token, own / whole
