"""A claim of pure arithmetic, written to a file as a user writes it."""

import pytest

CLAIM = """
from fractions import Fraction
import jax.numpy as jnp
from jaxattn.lab.refute import Claim, Integers, Sides, Space

def assumptions(instance):
    return "" if instance["x"].any() else "x is 0"

def exact(instance):
    x = [Fraction(int(c)) for c in instance["x"]]
    return Sides(sum(c * c for c in x), Fraction({bound}), {{"largest": int(max(x))}}, {boundary})

claim = Claim(
    statement="A nonzero x in Z^n has a squared norm ≤ {bound}.", source="a test", hypothesis="x ≠ 0",
    space=Space({{"x": Integers("n", -4, 4)}}, {sizes}),
    score=lambda one: jnp.where((one["x"] != 0).any(), (one["x"] ** 2).sum() - {bound} + 0.0, -jnp.inf),
    assumptions=assumptions, exact=exact, control={{"x": [1]}}, check={check!r}, batch=64, horizon="0 steps",
)
"""

SCRIPT = """
INSTANCE = {"x": [3]}
CONTROL = {"x": [1]}
found, control = (sum(c * c for c in one["x"]) for one in (INSTANCE, CONTROL))
print(found, control)
raise SystemExit(found <= 8 or control > 8)
"""


@pytest.fixture
def write_claim(tmp_path):
    """Write the claim ‖x‖² ≤ bound to a file, with a check script for the bound 8."""

    def write(bound=8, sizes="({'n': 4},)", check="check_norm.py", boundary="''", name="norm.py"):
        (tmp_path / "check_norm.py").write_text(SCRIPT)
        text = CLAIM.format(bound=bound, sizes=sizes, check=check, boundary=boundary)
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write
