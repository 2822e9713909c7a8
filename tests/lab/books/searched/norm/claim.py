"""Statements ‖x‖² ≤ bound for nonzero x in Z^n with entries up to 4."""

from dataclasses import replace
from fractions import Fraction

import jax.numpy as jnp

from jaxattn.lab.refute import Claim, Evidence, Integers, Sides, Space


def norm(bound, boundary="", **about):
    """Return the claim for a bound."""

    def exact(one):
        squared = sum(Fraction(int(c)) ** 2 for c in one["x"])
        return Sides(squared, Fraction(bound), {"largest": int(max(one["x"]))}, boundary)

    def score(one):
        return jnp.where((one["x"] != 0).any(), (one["x"] ** 2).sum() - bound + 0.0, -jnp.inf)

    return Claim(
        statement=f"A nonzero x in Z^n has a squared norm ≤ {bound}.",
        source="A test.",
        hypothesis="x ≠ 0",
        space=Space({"x": Integers("n", -4, 4)}, ({"n": 1}, {"n": 2})),
        score=score,
        assumptions=lambda one: "" if one["x"].any() else "x is 0",
        exact=exact,
        control={"x": [1]},
        batch=100,
        **about,
    )


claim = norm(8, check="proof.py", repaired="The bound is 32.")
true = norm(32)
flow = replace(
    claim,
    check="",
    evidence=lambda one: Evidence(True, "norm", "certified", "angle", 0.5, 0.75, 0.0, "two tolerances"),
)
tie = norm(8, "a tie")
