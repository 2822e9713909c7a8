"""Checks of sizes: what fits into a sequence, and into 32-bit numbers."""

from jaxattn.errors import InputError
from jaxattn.spec import MOST

MOST_POSITIONS = 2**31 - 1


def check_positions(name: str, number: int) -> None:
    """Raise InputError if an array has more places than 32-bit numbers can say."""
    if number > MOST_POSITIONS:
        raise InputError(
            f"{name}: {number:,} entries, and positions are 32-bit numbers of at most {MOST_POSITIONS:,}; "
            "take fewer or shorter sequences, or a smaller vocabulary"
        )


def check_multiple(name: str, value: int, of: int, unit: str) -> None:
    """Raise InputError unless a size is a positive multiple of `of`, which `unit` puts into words."""
    if value < of or value % of:
        raise InputError(f"{name}: {value} is not a positive multiple of {unit}")


def check_tokens(sequences: int, length: int) -> None:
    """Raise InputError if a corpus has more tokens than a 32-bit integer counts."""
    if sequences * length > MOST:
        raise InputError(
            f"length: {sequences:,} sequences of {length:,} are {sequences * length:,} tokens, more than "
            f"{MOST:,}; give fewer or shorter ones"
        )


def check_room(vocab_size: int, length: int, special: int, held: int) -> None:
    """Raise InputError if tokens do not fit.

    Args:
        vocab_size: V.
        length: tokens per sequence.
        special: how many tokens of the vocabulary play a part of their own.
        held: how many of those a sequence holds.

    Raises:
        InputError: naming the size that is too small.
    """
    if length < held:
        raise InputError(f"length: {length} tokens cannot hold {held} relevant ones")
    if vocab_size < special or (vocab_size == special and length > held):
        raise InputError(
            f"vocab_size: {vocab_size} leaves no irrelevant token beside the {special} relevant ones"
        )
