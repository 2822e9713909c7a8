"""Search for counterexamples to a claim, shrink them to a few small integers, and prove them exactly.

A claim is a Python file that assigns a `Claim` to `claim`. The function `refute` is the command
`jaxattn refute`. `exact` contains linear algebra and small convex programs in rational arithmetic, `flows`
contains helpers for claims on flows, and `picture` contains drawings.
"""

from jaxattn.lab.refute import exact, flows, picture
from jaxattn.lab.refute.claim import Claim, Evidence, Sides, read_claim
from jaxattn.lab.refute.search import Refutation, refute
from jaxattn.lab.refute.space import Integers, Space

__all__ = [
    "Claim",
    "Evidence",
    "Integers",
    "Refutation",
    "Sides",
    "Space",
    "exact",
    "flows",
    "picture",
    "read_claim",
    "refute",
]
