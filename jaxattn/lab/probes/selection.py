"""Probes for attention: selected tokens, whether these tokens cover all sequences, and attention entropy."""

from typing import ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import entr
from jaxtyping import Array, Float

from jaxattn.attention import attend
from jaxattn.attention.batched import sequential_vmap_if_large
from jaxattn.attention.tops import below_top, first_tokens
from jaxattn.base import Phase, Probe, Task
from jaxattn.base.model import HasAttention, HasHeads
from jaxattn.base.probe import ProbeContext
from jaxattn.core.fractions import fraction, share
from jaxattn.core.scales import FRACTION, NOT_NEGATIVE, Scale
from jaxattn.core.settings import Count, Fraction, NotNegative, PositiveInt, Static
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take
from jaxattn.lab.probes.requirements import require_bags, require_token_attention
from jaxattn.models.one_layer import is_one_layer
from jaxattn.theory import Scores, Selection, margin, selection_from_scores, selection_from_tokens


class Selected(Probe, frozen=True, kw_only=True):
    """Attention on important tokens, and the fraction of sequences in which an important token is selected.

    An important token is selected in a sequence if every token with the highest score is important, and at
    least one token has a lower score. An important token is tied if an unimportant token also has the highest
    score, or if all tokens have the same score, as under uniform attention. The metrics, except for
    `selected_tokens`, are NaN if no token is important.

    Attributes:
        important: minimum |posterior difference| for a token to count as important.
        min_count: minimum number of occurrences for a token to count as important, since the posterior
            difference of a rare token is noise.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "important_mass": "attention on important tokens",
        "important_selected": "sequences that select an important token",
        "important_tied": "sequences in which an important token ties for the highest score",
        "selected_tokens": "tokens with the highest score in a sequence",
    }
    scales: ClassVar[dict[str, Scale]] = dict.fromkeys(labels, FRACTION) | {"selected_tokens": NOT_NEGATIVE}

    important: Fraction = 0.5
    min_count: Count = 50

    def skip_reason(self, task: Task, phase: Phase) -> str | None:
        """Return why the probe is skipped, or None if attention is a softmax over token scores in a bag."""
        return require_token_attention(task)

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Compute the metrics for one seed."""
        scores, train = context.scores_and_values[0], context.data.train
        important = self._important(context)
        chosen = selection_from_scores(scores, train)
        selects, tied = chosen.selects(train, important)
        shares = {
            "important_mass": attend(train, scores, important.astype(scores.dtype)).mean(),
            "important_selected": share(selects),
            "important_tied": share(tied),
        }
        known = {name: jnp.where(important.any(), x, jnp.nan) for name, x in shares.items()}
        # JAX would average integers in float32.
        return known | {"selected_tokens": chosen.counts(train).mean(dtype=scores.dtype)}

    def _important(self, context: ProbeContext) -> Array:
        return context.data.tokens.important(self.important, self.min_count)


class HeadsSelected(Selected, frozen=True, kw_only=True):
    """The metrics of `Selected` for each attention head or query.

    If different heads select important tokens in different sequences, `any_head_selected` exceeds
    `head_selected` for every head.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "head_mass": "attention of each head on important tokens",
        "head_selected": "sequences in which each head selects an important token",
        "any_head_selected": "sequences in which some head selects an important token",
        "all_heads_selected": "sequences in which all heads select an important token",
    }
    scales: ClassVar[dict[str, Scale]] = dict.fromkeys(labels, FRACTION)

    def skip_reason(self, task: Task, phase: Phase) -> str | None:
        """Return why the probe is skipped, or None if the data are bags and the model has several heads."""
        return require_bags(task) if isinstance(task.model, HasHeads) else "requires a model with head_scores"

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Compute the metrics for one seed: (H,) with one value per head, and scalars over all heads."""
        train, important = context.data.train, self._important(context)

        def of_head(scores: Array) -> tuple[Array, Array]:
            selects, _ = selection_from_scores(scores, train).selects(train, important)
            return attend(train, scores, important.astype(scores.dtype)).mean(), selects

        mass, selects = jax.vmap(of_head)(cast(HasHeads, context.model).head_scores(context.params))
        shares = {
            "head_mass": mass,
            "head_selected": share(selects, axis=1),
            "any_head_selected": share(selects.any(axis=0)),
            "all_heads_selected": share(selects.all(axis=0)),
        }
        return {name: jnp.where(important.any(), x, jnp.nan) for name, x in shares.items()}


def attended(scores: Array, corpus: Corpus, nats: float | None) -> Selection:
    """Return the selection of tokens whose scores are within `nats` of the highest score in their sequence.

    If `nats` is None, only ties up to rounding error are selected. Scores that tie in the limit of a flow
    differ by a few nats along the path, whereas all other gaps grow at least like margin · ‖p‖. A threshold
    of 10 nats therefore separates the two cases once ‖p‖ exceeds about 20 / margin.
    """
    if nats is None:
        return selection_from_scores(scores, corpus)
    return selection_from_scores(scores, corpus, tie=0.0, nats=nats)


def attended_on_host(scores: np.ndarray, corpus: Corpus, nats: float) -> tuple[Selection, np.ndarray]:
    """Compute `attended` with NumPy; also return the number of selected tokens in each sequence, (n,).

    NumPy is used because shapes differ between seeds, so that JAX would compile once per seed.
    """
    bags = corpus.bags
    present = np.asarray(bags.count) > 0
    entries = np.where(present, scores[np.asarray(bags.index)], -np.inf)
    owner = np.minimum(np.asarray(bags.owner), corpus.num_examples - 1)
    top = np.full(corpus.num_examples, -np.inf)
    np.maximum.at(top, owner, entries.max(axis=1))
    chosen = present & (entries >= top[owner][:, None] - nats)
    counts = np.bincount(owner, chosen.sum(axis=1), corpus.num_examples)
    return Selection(chosen), counts


class RelevantTokens(Probe, frozen=True, kw_only=True):
    """Fractions of sequences that select a relevant token, select exactly the relevant tokens, or have a tie.

    A sequence selects a relevant token if every token with the highest score is relevant, and at least one
    token has a lower score. A relevant token is tied if an irrelevant token also has the highest score, or if
    all tokens have the same score. Sequences without relevant tokens are not counted.

    Attributes:
        relevant: number of relevant tokens, which are the tokens 0 to relevant - 1.
        nats: a score counts as highest if it is within `nats` of the highest score in the sequence.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "relevant_selected": "sequences that select a relevant token",
        "only_relevant_selected": "sequences that select the relevant tokens and no others",
        "relevant_tied": "sequences in which a relevant token ties for the highest score",
        "relevant_margin": "margin of $p$ on the relevant tokens",
    }
    scales: ClassVar[dict[str, Scale]] = dict.fromkeys(labels, FRACTION) | {"relevant_margin": Scale()}

    relevant: PositiveInt
    nats: Static[NotNegative] = 10.0

    def skip_reason(self, task: Task, phase: Phase) -> str | None:
        """Return why the probe is skipped, or None if the model is the one-layer model on bags of tokens."""
        return require_bags(task) if is_one_layer(task.model) else "requires the one-layer model"

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Compute the metrics for one seed."""
        corpus, scores = context.data.train, context.scores_and_values[0]
        relevant = jnp.arange(corpus.vocab_size) < self.relevant
        chosen, present = attended(scores, corpus, self.nats), selection_from_tokens(relevant, corpus)
        selects, tied = chosen.selects(corpus, relevant)
        every = present.counts(corpus)
        found = {
            "relevant_selected": selects,
            "only_relevant_selected": selects & (chosen.counts(corpus) == every),
            "relevant_tied": tied,
        }
        linear = Scores(context.params.E, corpus)
        held = (every > 0).sum(dtype=float)
        shares = {name: fraction(x.sum(dtype=float), held) for name, x in found.items()}
        return shares | {"relevant_margin": margin(context.params.p, linear, present)}


@sequential_vmap_if_large
def attention_entropy(corpus: Corpus, scores: Float[Array, " V"]) -> Float[Array, " n"]:
    """Compute the attention entropy -Σ_s q_s log q_s of each sequence, in nats.

        q_s = count_s exp(a_s) / Σ_r count_r exp(a_r)

    Here a_s is the score of token s, and count_s its number of occurrences in the sequence. The entropy is 0
    if all attention is on one token, even if the token occurs several times. The differences between scores
    may be arbitrarily large.
    """
    bags = corpus.bags
    _, _, normaliser, weight = bags.softmax(take(scores, bags.index.astype(jnp.int32)))
    q = weight / bags.spread(jnp.where(normaliser > 0, normaliser, 1))
    (entropy,) = bags.sum(-q * jnp.log(jnp.where(q > 0, q, 1)))
    return entropy


class AttentionEntropy(Probe, frozen=True, kw_only=True):
    """Mean attention entropy over sequences, and its exponential, the effective number of attended tokens."""

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "attention_entropy": "attention entropy",
        "attended_tokens": "attended tokens",
    }
    scales: ClassVar[dict[str, Scale]] = {
        "attention_entropy": NOT_NEGATIVE,
        "attended_tokens": Scale(low=1.0),
    }

    def skip_reason(self, task: Task, phase: Phase) -> str | None:
        """Return why the probe is skipped, or None if attention is a softmax over token scores in a bag."""
        return require_token_attention(task)

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Compute attention entropy and the effective number of attended tokens on the training corpus."""
        entropy = attention_entropy(context.data.train, context.scores_and_values[0]).mean()
        return {"attention_entropy": entropy, "attended_tokens": jnp.exp(entropy)}


class Attended(Probe, frozen=True, kw_only=True):
    """Concentration of attention for each head and query, averaged over the training data.

    A query selects a token if its largest attention weight is at least `above`. For attention q (n, ..., T)
    from `HasAttention.attention` over T positions, the effective number of attended positions is
    exp(-Σ_t q_t log q_t).

    Attributes:
        above: minimum attention weight for a token to count as selected.
    """

    labels: ClassVar[dict[str, str]] = {
        "largest_attention": "largest attention",
        "attended_positions": "attended positions",
        "selects_one": "queries that select one token",
    }
    scales: ClassVar[dict[str, Scale]] = dict.fromkeys(labels, FRACTION) | {
        "attended_positions": Scale(low=1.0)
    }

    above: Fraction = 0.9

    def skip_reason(self, task: Task, phase: Phase) -> str | None:
        """Return why the probe is skipped, or None if the model returns its attention."""
        return None if isinstance(task.model, HasAttention) else "requires a model with attention"

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Compute the metrics for one seed: one value per head and query, (Q,), or a scalar if Q = 1.

        The metrics are NaN if there are no queries.
        """
        train = context.sampled.train
        q = cast(HasAttention, context.model).attention(context.params, train)
        rows = jnp.asarray(q).reshape(train.num_examples, -1, q.shape[-1])
        found = {
            "largest_attention": rows.max(axis=-1),
            "attended_positions": jnp.exp(entr(rows).sum(axis=-1)),
            "selects_one": jnp.where(jnp.isnan(rows[..., 0]), jnp.nan, rows.max(axis=-1) >= self.above),
        }
        return {name: jnp.nanmean(x, axis=0).squeeze() for name, x in found.items()}


class Cover(Probe, frozen=True, kw_only=True):
    """Highest-scoring tokens, and the deviation of E·v from its limit under gradient flow on E, p and v.

    Let s(X) be the token with the highest score in sequence X (the first such token), y_s = ±1 the label of
    the sequences with s(X) = s, and r_eff the number of distinct tokens s(X). If each of these tokens has the
    highest score only in sequences with the same label, the limit is

        E_s·v = y_s ‖v‖²/√r_eff for s = s(X),   0 for other tokens,

    and the cost ‖E‖² + ‖v‖² of a margin of 1 is 2 √r_eff.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "cover_size": r"tokens with the highest score of a sequence, $r_\mathrm{eff}$",
        "cover_share": "sequences whose highest token has one label only",
        "cover_error": r"largest $|E_s\cdot v\,\sqrt{r_\mathrm{eff}}/\Vert v\Vert^2-y_s|$ of these tokens",
        "cover_elsewhere": r"largest $|E_s\cdot v|\,\sqrt{r_\mathrm{eff}}/\Vert v\Vert^2$ of other tokens",
        "cover_cost": r"$2\sqrt{r_\mathrm{eff}}$",
        "cover_attention": "least attention on the token with the highest score",
    }
    scales: ClassVar[dict[str, Scale]] = dict.fromkeys(labels, NOT_NEGATIVE) | dict.fromkeys(
        ("cover_share", "cover_attention"), FRACTION
    )

    def skip_reason(self, task: Task, phase: Phase) -> str | None:
        """Return why the probe is skipped, or None if it applies.

        The probe requires the one-layer model on bags of tokens with two classes.
        """
        if (missing := require_bags(task)) is not None:
            return missing
        if not is_one_layer(task.model):
            return "requires the one-layer model"
        return None if task.data.train.num_classes == 2 else "requires two classes"

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Compute the metrics for one seed."""
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
            "cover_share": share(one_label[token]),
            "cover_error": jnp.where(one_label.any(), jnp.where(one_label, error, 0).max(), jnp.nan),
            "cover_elsewhere": jnp.where(chosen, 0, jnp.abs(ratio)).max(),
            "cover_cost": 2 * jnp.sqrt(size),
            "cover_attention": attention.min(),
        }


def on_top(scores: Array, corpus: Corpus) -> tuple[Array, Array]:
    """Return the first token with the highest score in each sequence, and its attention weight; (n,) each."""
    bags = corpus.bags
    index = bags.index.astype(jnp.int32)
    below = below_top(corpus, scores)
    token = first_tokens(corpus, below == 0, index)
    weight = bags.count * jnp.exp(-below)
    first = (below == 0) & (index == bags.spread(token))
    own, whole = bags.sum(jnp.where(first, weight, 0), weight)
    return token, own / whole
