"""Generators for synthetic corpora: pure functions of a key that work under jit and vmap.

Tokens 0 to relevant-1 are relevant, and token s belongs to class s mod K. For two classes, even tokens are
negative and odd tokens are positive. All other tokens are irrelevant. The corresponding settings classes are
in `jaxattn.data.generators`.
"""

from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
import msgspec
from jax import Array

from jaxattn.base.from_function import declare
from jaxattn.core.arguments import checked
from jaxattn.core.errors import InputError
from jaxattn.core.settings import MAX_INT, Fraction, PositiveInt
from jaxattn.data.corpus import Corpus, class_labels, from_draws

Classes = Annotated[int, msgspec.Meta(ge=2)]
_SIZES = ("vocab_size", "relevant", "length", "sequences", "num_classes")


def check_sizes(
    vocab_size: int,
    relevant: int,
    length: int,
    sequences: int,
    num_classes: int,
    relevant_per_sequence: int = 1,
) -> None:
    """Raise InputError, with a remedy, if no corpus with these sizes exists."""
    _check_classes(relevant, sequences, num_classes)
    if not 1 <= relevant_per_sequence <= relevant // num_classes:
        raise InputError(
            f"relevant_per_sequence: must be between 1 and {relevant // num_classes} (the number of "
            f"relevant tokens per class), got {relevant_per_sequence}"
        )
    check_capacity(vocab_size, length, sequences, special=relevant, held=relevant_per_sequence)


def check_topics(
    vocab_size: int, relevant: int, topic_words: int, length: int, sequences: int, num_classes: int
) -> None:
    """Raise InputError, with a remedy, if `topics` cannot generate a corpus with these sizes."""
    _check_classes(relevant, sequences, num_classes)
    check_multiple("topic_words", topic_words, 1, "1")
    check_capacity(vocab_size, length, sequences, special=relevant, held=topic_words)


def _check_classes(relevant: int, sequences: int, num_classes: int) -> None:
    if num_classes < 2:
        raise InputError(f"num_classes: {num_classes}; must be at least 2")
    check_multiple("sequences", sequences, num_classes, f"num_classes = {num_classes}")
    check_multiple("relevant", relevant, num_classes, f"num_classes = {num_classes}")


def check_multiple(name: str, value: int, of: int, unit: str) -> None:
    """Raise InputError unless a size is a positive multiple of `of`, which the message calls `unit`."""
    if value < of or value % of:
        raise InputError(f"{name}: {value} is not a positive multiple of {unit}")


def check_capacity(vocab_size: int, length: int, sequences: int, special: int, held: int) -> None:
    """Raise InputError if the vocabulary or the sequences are too small, or the corpus is too large.

    Args:
        vocab_size: V.
        length: number of tokens per sequence.
        sequences: number of sequences.
        special: number of relevant tokens in the vocabulary.
        held: number of relevant tokens per sequence.
    """
    if (tokens := sequences * length) > MAX_INT:
        raise InputError(
            f"length: {sequences:,} sequences of {length:,} tokens total {tokens:,} tokens, more than "
            f"{MAX_INT:,}; use fewer or shorter sequences"
        )
    if length < held:
        raise InputError(f"length: {length} is too short for {held} relevant tokens; use at least {held}")
    if vocab_size < special or (vocab_size == special and length > held):
        raise InputError(
            f"vocab_size: {vocab_size} leaves no irrelevant tokens next to the {special} "
            "relevant tokens; increase it"
        )


@checked
@declare(check=check_sizes)
@partial(jax.jit, static_argnames=_SIZES)
def independent(
    key: Array,
    *,
    vocab_size: PositiveInt,
    relevant: PositiveInt,
    length: PositiveInt,
    sequences: PositiveInt,
    max_posterior_difference: Fraction | Array = 0.9,
    relevant_mass: Fraction | Array | None = None,
    num_classes: Classes = 2,
    used: int | Array | None = None,
) -> Corpus:
    """Sample a corpus whose tokens are independent given the label.

        P(s | y) = base_s (1 + δ_s c(s, y)),  c = 1 if s belongs to class y, else -1/(K-1),

    where the base distribution is uniform over relevant tokens and uniform over irrelevant tokens. The
    j-th of the m relevant tokens of a class has δ = max_posterior_difference · j/m, and irrelevant tokens
    have δ = 0. For two classes, the posterior difference of token s is ±δ_s in expectation. Labels
    are balanced.

    Args:
        key: PRNG key.
        vocab_size: V, number of tokens.
        relevant: number of relevant tokens, a multiple of K.
        length: T, number of tokens per sequence.
        sequences: n, number of sequences.
        max_posterior_difference: largest posterior difference δ of a token, in [0, 1].
        relevant_mass: probability that a token in a sequence is relevant; defaults to `relevant /
            vocab_size`.
        num_classes: K, number of classes.
        used: number of tokens to sample from, at most V; defaults to V. It may be traced, so that corpora
            with different vocabularies have the same shapes.

    Raises:
        InputError: the sizes are incompatible, for example because `sequences` is not a multiple of K.

    Source:
        Eq. 15 of arXiv 2505.17282. The paper does not specify δ and the base distribution; this library
        chooses them.

    Example:
        >>> corpus = ja.data.independent(jax.random.key(0), vocab_size=9, relevant=4, length=3, sequences=8)
        >>> corpus.counts().shape
        (8, 9)
    """
    check_sizes(vocab_size, relevant, length, sequences, num_classes)
    used = vocab_size if used is None else used
    if relevant_mass is None:
        relevant_mass = relevant / used
    class_index = jnp.arange(sequences) % num_classes
    token = jnp.arange(relevant)
    delta = max_posterior_difference * (token // num_classes + 1) / (relevant // num_classes)
    agrees = token % num_classes == jnp.arange(num_classes)[:, None]
    tilt = 1 + delta * jnp.where(agrees, 1.0, -1 / (num_classes - 1))
    cumulative = jnp.cumsum(tilt / relevant, axis=1)
    which, rank, other = jax.random.split(key, 3)
    shape = (sequences, length)
    picked = _invert(cumulative[class_index], jax.random.uniform(rank, shape))
    irrelevant = jax.random.randint(other, shape, relevant, jnp.maximum(used, relevant + 1))
    is_relevant = jax.random.uniform(which, shape) < relevant_mass
    tokens = jnp.where(is_relevant, picked, irrelevant)
    return labelled(tokens, class_index, vocab_size, num_classes)


@checked
@declare(check=check_topics)
@partial(jax.jit, static_argnames=(*_SIZES, "topic_words"))
def topics(
    key: Array,
    *,
    vocab_size: PositiveInt,
    relevant: PositiveInt,
    topic_words: PositiveInt,
    length: PositiveInt,
    sequences: PositiveInt,
    min_purity: Fraction | Array = 0.0,
    max_purity: Fraction | Array = 1.0,
    num_classes: Classes = 2,
    used: int | Array | None = None,
) -> Corpus:
    """Sample a corpus of common words and topic words, with the topic of each sequence as its label.

        P(s | y) = (1 - π_s + K π_s 1[s belongs to y]) / relevant   for each topic word.

    A topic word s comes from the topic of the sequence with probability π_s, called its purity, and from
    any topic otherwise. In expectation, the posterior difference of a topic word is its purity; for two
    classes it is ±π_s. The purities of the words in a topic are evenly spaced from `min_purity` to
    `max_purity`. Common words are uniform and independent of the label, so their average signed frequency
    α_s is 0 only in expectation. Topics are balanced.

    Args:
        key: PRNG key.
        vocab_size: V, number of tokens.
        relevant: number of topic words in the vocabulary, a multiple of K.
        topic_words: number of topic words per sequence, including repetitions.
        length: T, number of tokens per sequence.
        sequences: n, number of sequences.
        min_purity: smallest purity of a topic word, in [0, 1].
        max_purity: largest purity of a topic word, in [0, 1].
        num_classes: K, number of classes.
        used: number of tokens to sample from, as in `independent`.

    Raises:
        InputError: the sizes are incompatible, for example because `sequences` is not a multiple of K.

    Source:
        Topic and common words of Lu, Mao & Nayak, arXiv 2011.10036, who use one pure topic word per
        sentence (`topic_words` 1, both purities 1). Purities below 1 are an extension by this library.

    Example:
        >>> sizes = {'vocab_size': 9, 'length': 5, 'sequences': 8}
        >>> corpus = ja.data.topics(jax.random.key(0), relevant=4, topic_words=2, **sizes)
        >>> corpus.counts().sum(axis=1).tolist()
        [5, 5, 5, 5, 5, 5, 5, 5]
    """
    check_topics(vocab_size, relevant, topic_words, length, sequences, num_classes)
    used = vocab_size if used is None else used
    class_index = jnp.arange(sequences) % num_classes
    token = jnp.arange(relevant)
    purity = jnp.linspace(min_purity, max_purity, relevant // num_classes)[token // num_classes]
    belongs = token % num_classes == jnp.arange(num_classes)[:, None]
    cumulative = jnp.cumsum((1 + purity * jnp.where(belongs, num_classes - 1.0, -1.0)) / relevant, axis=1)
    topic_key, common_key = jax.random.split(key)
    own = _invert(cumulative[class_index], jax.random.uniform(topic_key, (sequences, topic_words)))
    shape = (sequences, length - topic_words)
    common = jax.random.randint(common_key, shape, relevant, jnp.maximum(used, relevant + 1))
    return labelled(jnp.concatenate([own, common], axis=1), class_index, vocab_size, num_classes)


def _invert(cumulative: Array, uniform: Array) -> Array:
    """Return quantiles of n distributions with cumulative weights (n, M), at levels (n, N) in [0, 1)."""
    position = uniform * cumulative[:, -1:]
    picked = jax.vmap(lambda row, x: jnp.searchsorted(row, x, side="right"))(cumulative, position)
    return jnp.minimum(picked, cumulative.shape[1] - 1)


@checked
@declare(check=check_sizes)
@partial(jax.jit, static_argnames=(*_SIZES, "relevant_per_sequence"))
def multi_relevant(
    key: Array,
    *,
    vocab_size: PositiveInt,
    relevant: PositiveInt,
    relevant_per_sequence: PositiveInt,
    length: PositiveInt,
    sequences: PositiveInt,
    num_classes: Classes = 2,
    used: int | Array | None = None,
) -> Corpus:
    """Sample a corpus of sequences that each contain r distinct relevant tokens from their class.

    All other tokens are irrelevant. Sequences come in groups of K, one per class, with the same
    irrelevant tokens. Thus the average signed frequency α_s of every irrelevant token is exactly 0, and
    each relevant token occurs with only one label.

    Args:
        key: PRNG key.
        vocab_size: V, number of tokens.
        relevant: number of relevant tokens, a multiple of K.
        relevant_per_sequence: r, number of relevant tokens per sequence, at most `relevant / K`.
        length: T, number of tokens per sequence.
        sequences: n, number of sequences.
        num_classes: K, number of classes.
        used: number of tokens to sample from, as in `independent`.

    Raises:
        InputError: the sizes are incompatible, for example because `sequences` is not a multiple of K.

    Example:
        >>> sizes = {'vocab_size': 9, 'length': 5, 'sequences': 8}
        >>> corpus = ja.data.multi_relevant(jax.random.key(0), relevant=6, relevant_per_sequence=2, **sizes)
        >>> corpus.counts()[:, :6].sum(axis=1).tolist()
        [2, 2, 2, 2, 2, 2, 2, 2]
    """
    check_sizes(vocab_size, relevant, length, sequences, num_classes, relevant_per_sequence)
    used = vocab_size if used is None else used
    groups, per_class = sequences // num_classes, relevant // num_classes
    own_key, shared_key = jax.random.split(key)
    class_index = jnp.tile(jnp.arange(num_classes), groups)
    order = jnp.argsort(jax.random.uniform(own_key, (sequences, per_class)), axis=1)
    own = order[:, :relevant_per_sequence] * num_classes + class_index[:, None]
    shape = (groups, length - relevant_per_sequence)
    shared = jax.random.randint(shared_key, shape, relevant, jnp.maximum(used, relevant + 1))
    tokens = jnp.concatenate([own, jnp.repeat(shared, num_classes, axis=0)], axis=1)
    return labelled(tokens, class_index, vocab_size, num_classes)


@checked
@declare(check=check_sizes)
def assumption1(
    key: Array,
    *,
    vocab_size: PositiveInt,
    relevant: PositiveInt,
    length: PositiveInt,
    sequences: PositiveInt,
    num_classes: Classes = 2,
    used: int | Array | None = None,
) -> Corpus:
    """Sample a corpus with one relevant token per sequence that satisfies Assumption 1 of the paper exactly.

    Each relevant token occurs with only one label. All other tokens are irrelevant: their average signed
    frequency α_s is exactly 0.

    Args:
        key: PRNG key.
        vocab_size: V, number of tokens.
        relevant: number of relevant tokens, a multiple of K.
        length: T, number of tokens per sequence.
        sequences: n, number of sequences.
        num_classes: K, number of classes.
        used: number of tokens to sample from, as in `independent`.

    Raises:
        InputError: the sizes are incompatible, for example because `sequences` is not a multiple of K.

    Source:
        Assumption 1 of arXiv 2505.17282. The construction, in which groups of sequences share irrelevant
        tokens, is original to this library.

    Example:
        >>> corpus = ja.data.assumption1(jax.random.key(0), vocab_size=9, relevant=4, length=3, sequences=8)
        >>> corpus.num_examples, corpus.vocab_size, corpus.lengths.tolist()
        (8, 9, [3, 3, 3, 3, 3, 3, 3, 3])
    """
    return multi_relevant(
        key,
        vocab_size=vocab_size,
        relevant=relevant,
        relevant_per_sequence=1,
        length=length,
        sequences=sequences,
        num_classes=num_classes,
        used=used,
    )


def labelled(tokens: Array, class_index: Array, vocab_size: int, num_classes: int) -> Corpus:
    """Build a corpus from sampled sequences, (n, T), and their class indices, (n,)."""
    labels = class_labels(class_index, num_classes)
    return from_draws(tokens, labels, vocab_size=vocab_size, num_classes=num_classes)
