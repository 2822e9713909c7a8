"""A corpus with equal counts, a probe for selected labels, and a balanced loss."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja

SIZES = {"vocab_size": 50, "relevant": 20, "length": 8, "sequences": 200}


def equal_counts(
    key: Array, *, vocab_size: int, relevant: int, length: int, sequences: int
) -> ja.data.Corpus:
    """Sample a corpus that satisfies Assumption 1, with every relevant token in n / R sequences.

    Unlike in `assumption1`, the R/2 tokens of each label are distributed evenly, in random order. Sequences
    come in pairs with one sequence of each label, which share their irrelevant tokens.

    Args:
        key: PRNG key.
        vocab_size: V.
        relevant: R.
        length: T.
        sequences: n, a multiple of R.
    """
    pairs, per_class = sequences // 2, relevant // 2
    if sequences % relevant:
        raise ValueError(f"sequences: {sequences} is not a multiple of relevant = {relevant}")
    order_key, shared_key = jax.random.split(key)
    dealt = jnp.arange(pairs) % per_class
    orders = [jax.random.permutation(one, dealt) for one in jax.random.split(order_key)]
    own = jnp.stack([2 * orders[0], 2 * orders[1] + 1], axis=1).reshape(sequences, 1)
    shared = jax.random.randint(shared_key, (pairs, length - 1), relevant, vocab_size)
    tokens = jnp.concatenate([own, jnp.repeat(shared, 2, axis=0)], axis=1)
    labels = jnp.tile(jnp.array([-1, 1]), pairs)
    return ja.data.from_draws(tokens, labels, vocab_size=vocab_size, num_classes=2)


class Labels(ja.Probe, frozen=True, kw_only=True):
    """Fraction of the sequences of each label that select a relevant token (α ≠ 0), and three predictors.

    `kept` is the smaller of the two fractions. It is 0 if no sequence of a label selects its relevant token.
    `rarest` is the count of the rarest token of label 1 minus the count of the rarest token of label -1. A
    positive value of a predictor (`pull`, `ahead` or `skewed`) predicts that label 1 wins.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "kept": "least share of a label's sequences that select their relevant token",
        "selected_negative": "sequences of label -1 that select their relevant token",
        "selected_positive": "sequences of label 1 that select their relevant token",
        "pull": r"$-\gamma \cdot \partial L / \partial a$",
        "ahead": "mean score of relevant tokens of label 1 less that of label -1",
        "skewed": r"$\sum_s \alpha_s^3$",
        "rarest": "count of the rarest token of label 1 less that of label -1",
    }

    def measure(self, context) -> dict[str, Array]:
        """Compute the metrics for one seed."""
        corpus, (scores, values) = context.data.train, context.scores_and_values
        alpha = ja.data.average_signed_frequency(corpus)
        chosen = ja.theory.selection_from_scores(scores, corpus)
        selects, _ = chosen.selects(corpus, alpha != 0)
        owns = (corpus.targets < 0, corpus.targets > 0)
        negative, positive = ((selects & own).sum() / own.sum() for own in owns)
        label = jnp.sign(alpha)
        rare = [jnp.where(label == y, jnp.abs(alpha), jnp.inf).min() for y in (-1, 1)]
        return {
            "kept": jnp.minimum(negative, positive),
            "selected_negative": negative,
            "selected_positive": positive,
            "pull": _pull(scores, values, corpus),
            "ahead": label @ scores / jnp.abs(label).sum(),
            "skewed": (alpha**3).sum(),
            "rarest": (rare[1] - rare[0]) * corpus.lengths.max() * corpus.num_examples,
        }


def _pull(scores: Array, values: Array, corpus: ja.data.Corpus) -> Array:
    def loss(scores: Array) -> Array:
        return jax.nn.softplus(-corpus.targets * ja.attention.attend(corpus, scores, values)).mean()

    return -values @ jax.grad(loss)(scores)


class Balanced(ja.Loss, frozen=True, kw_only=True):
    """Loss (1/β) log mean_y exp(β L_y), where L_y is the mean logistic loss over label y.

    Attributes:
        beta: β; the loss is close to the mean of both L_y for small β, and to the larger L_y for large β.
    """

    coupled: ClassVar[bool] = True

    beta: float

    def __call__(self, outputs: Array, targets: Array) -> Array:
        """Compute the loss over all sequences."""
        each = jax.nn.softplus(-targets * outputs)
        of_label = jnp.stack([jnp.where(targets == y, each, 0).sum() / (targets == y).sum() for y in (-1, 1)])
        return (jax.nn.logsumexp(self.beta * of_label) - jnp.log(2.0)) / self.beta


def study(
    kind: str,
    seeds: int | list[int],
    *,
    step_size: float = 1.0,
    dim: float | str = 2048,
    sizes: dict | None = None,
    phases: list | None = None,
    name: str = "label_window",
    **rest,
) -> ja.Study:
    """Build a study with the given phases, or with one step of size η0 on E and then the exact flow of p."""
    after = ja.dynamics.ExactFlow(name="query", until_norm=30.0, points=3)
    return ja.Study(
        name=name,
        seeds=seeds,
        dtype="float64",
        data={"kind": equal_counts if kind == "equal" else "assumption1", **SIZES, **(sizes or {})},
        model=ja.models.OneLayer(dim=dim),
        phases=phases or [ja.dynamics.OneStep(name="embed", step_size=step_size), after],
        probes=ja.Probes(tokens=False, per_decade=0, own=[Labels()]),
        **rest,
    )
