"""Two-class corpora in which no single token determines the label. Generation works under jit and vmap.

Tokens that determine the label come first in the vocabulary. The label does not depend on other tokens.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.base.from_function import declare
from jaxattn.core.arguments import checked
from jaxattn.core.settings import Fraction, PositiveInt
from jaxattn.data.corpus import Corpus
from jaxattn.data.synthetic import check_capacity, check_multiple, labelled


def check_xor(vocab_size: int, length: int, sequences: int, pairs: int = 1) -> None:
    """Raise InputError, with a remedy, if `xor` cannot generate a corpus with these sizes."""
    check_multiple("pairs", pairs, 1, "1")
    check_multiple("sequences", sequences, 4, "4, one for each choice of the two tokens")
    check_capacity(vocab_size, length, sequences, special=4 * pairs, held=2)


def check_negation(vocab_size: int, relevant: int, length: int, sequences: int) -> None:
    """Raise InputError, with a remedy, if `negation` cannot generate a corpus with these sizes."""
    check_multiple("relevant", relevant, 2, "2, the number of classes")
    check_multiple("sequences", sequences, 4, "4, for both classes with and without negation")
    check_capacity(vocab_size, length, sequences, special=relevant + 1, held=2)
    # Sequences without a negation token contain an irrelevant token instead.
    check_capacity(vocab_size, length, sequences, special=relevant + 1, held=1)


@checked
@declare(check=check_xor)
@partial(jax.jit, static_argnames=("vocab_size", "pairs", "length", "sequences"))
def xor(
    key: Array,
    *,
    vocab_size: PositiveInt,
    length: PositiveInt,
    sequences: PositiveInt,
    pairs: PositiveInt = 1,
    used: int | Array | None = None,
) -> Corpus:
    """Sample a corpus labelled by the XOR of two tokens; every average signed frequency α_s is 0.

    In the j-th XOR problem, tokens 4j and 4j+1 are a_0 and a_1, and tokens 4j+2 and 4j+3 are b_0 and b_1.
    A sequence contains one a and one b from the same problem; all its other tokens are irrelevant:

        y = +1 if it contains (a_0, b_0) or (a_1, b_1), else -1.

    Sequences come in groups of four, one for each choice of a and b, with the same irrelevant tokens.
    Consecutive groups cycle through the problems.

    Args:
        key: PRNG key.
        vocab_size: V, number of tokens.
        length: T, number of tokens per sequence.
        sequences: n, number of sequences.
        pairs: number of independent XOR problems, each with four relevant tokens.
        used: number of tokens to sample from, as in `independent`.

    Raises:
        InputError: the sizes are incompatible, for example because `sequences` is not a multiple of 4.

    Source:
        Original to this library. The first-order statistic of arXiv 2505.17282 vanishes for XOR.

    Example:
        >>> corpus = ja.data.xor(jax.random.key(0), vocab_size=9, length=4, sequences=8)
        >>> ja.data.average_signed_frequency(corpus)[:4].tolist()
        [0.0, 0.0, 0.0, 0.0]
    """
    check_xor(vocab_size, length, sequences, pairs)
    used = vocab_size if used is None else used
    groups, relevant = sequences // 4, 4 * pairs
    first, second = jnp.tile(jnp.array([[0, 0, 1, 1], [0, 1, 0, 1]]), groups)
    couple = 4 * jnp.repeat(jnp.arange(groups) % pairs, 4)
    shared = jax.random.randint(key, (groups, length - 2), relevant, jnp.maximum(used, relevant + 1))
    own = jnp.stack([couple + first, couple + 2 + second], axis=1)
    tokens = jnp.concatenate([own, jnp.repeat(shared, 4, axis=0)], axis=1)
    return labelled(tokens, (first == second).astype(int), vocab_size, 2)


@checked
@declare(check=check_negation)
@partial(jax.jit, static_argnames=("vocab_size", "relevant", "length", "sequences"))
def negation(
    key: Array,
    *,
    vocab_size: PositiveInt,
    relevant: PositiveInt,
    length: PositiveInt,
    sequences: PositiveInt,
    negated: Fraction | Array = 0.5,
    used: int | Array | None = None,
) -> Corpus:
    """Sample sequences with one relevant token and, in some of them, a negation token that flips the label.

    Among the tokens below `relevant`, even tokens are negative and odd tokens are positive. Token
    `relevant` is the negation token:

        y = sign(relevant token) · (-1)^[the sequence contains the negation token].

    Sequences come in pairs, one with a negative and one with a positive token. Either both or neither are
    negated, and all their other tokens are the same, so the average signed frequency α_s is exactly 0 for
    the negation token and every irrelevant token. Two consecutive pairs have the same relevant tokens. If
    `negated` is 1/2, one of the two pairs is negated, and α_s is exactly 0 for the relevant tokens, too.
    For other values of `negated`, the mean of α_s of a relevant token over keys is (1 - 2 negated) times
    its value without negation, up to rounding of the number of negated pairs.

    Args:
        key: PRNG key.
        vocab_size: V, number of tokens.
        relevant: number of relevant tokens, not counting the negation token; a multiple of 2.
        length: T, number of tokens per sequence.
        sequences: n, number of sequences.
        negated: fraction of the sequences that contain the negation token, in [0, 1]. Their number is
            rounded down to an even number.
        used: number of tokens to sample from, as in `independent`.

    Raises:
        InputError: the sizes are incompatible, for example because `sequences` is not a multiple of 4.

    Source:
        Original to this library, as the simplest corpus in which one token reverses the meaning of
        another.

    Example:
        >>> sizes = {'vocab_size': 9, 'relevant': 4, 'length': 3, 'sequences': 8}
        >>> corpus = ja.data.negation(jax.random.key(0), negated=0.0, **sizes)
        >>> corpus.num_examples
        8
    """
    check_negation(vocab_size, relevant, length, sequences)
    used = vocab_size if used is None else used
    pairs = sequences // 2
    own_key, shared_key = jax.random.split(key)
    which = jax.random.randint(own_key, (sequences // 4, 2), 0, relevant // 2)
    own = jnp.repeat(2 * which + jnp.arange(2)[None], 2, axis=0).reshape(-1, 1)
    # floor(i · negated) increases at evenly spaced pairs i; for negated = 1/2, at every second pair.
    full = jnp.floor(jnp.arange(pairs + 1) * negated)
    turned = full[1:] > full[:-1]
    irrelevant = relevant + 1
    shared = jax.random.randint(
        shared_key, (pairs, length - 1), irrelevant, jnp.maximum(used, irrelevant + 1)
    )
    shared = shared.at[:, 0].set(jnp.where(turned, relevant, shared[:, 0]))
    tokens = jnp.concatenate([own, jnp.repeat(shared, 2, axis=0)], axis=1)
    class_index = jnp.tile(jnp.arange(2), pairs) ^ jnp.repeat(turned, 2)
    return labelled(tokens, class_index, vocab_size, 2)
