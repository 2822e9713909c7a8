"""Chips that are not here: compilers for them, and what compiled programs move, compute and launch."""
