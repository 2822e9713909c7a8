"""Where the flow of a cell leads, and certificates as text."""

from functools import cached_property

import numpy as np

from jaxattn.claims.measured import Measured
from jaxattn.claims.rows import Claim, Row, share
from jaxattn.results.numbers import brief


class Limit:
    """The end of the phase `limit` of a cell, an exact flow on p held against its max-margin direction."""

    def __init__(self, cell: Measured):
        """Look at a cell."""
        self.cell = cell
        self.until_norm: float = cell["phases.limit.until_norm"]

    def last(self, metric: str) -> np.ndarray:
        """Look up a metric, (S,) float64."""
        return self.cell.last("limit", metric)

    @property
    def norm(self) -> np.ndarray:
        """‖p‖, (S,)."""
        return self.last("p_norm")

    @property
    def reached(self) -> np.ndarray:
        """Whether the flow came to the ‖p‖ it was to come to, (S,) bool."""
        return self.norm >= self.until_norm

    @property
    def growth(self) -> np.ndarray:
        """Margin · t ‖∂L/∂p‖, (S,): the growth of margin · ‖p‖ per e-fold of time.

        If ‖p‖ grows like log t / margin it is 1; at a finite stationary point it is 0. It is 0 or NaN where
        the selection has no margin.
        """
        return self.last("max_margin") * np.exp(self.last("log_time") + self.last("log_gradient_norm"))

    @cached_property
    def certificate(self) -> str:
        """Text of the certificates of all seeds."""
        return certificate(*map(self.last, ("feasible", "duality_gap", "primal_residual")))

    def is_close(self, claim: Claim, close: float) -> Row:
        """Make the row that p comes so close to its max-margin direction."""
        away = self.last("certified_distance")
        text = f"1 - cos ≤ {round_up(np.max(away))}, {self.certificate}"
        measured = f"1 - cos ≤ {brief(close)} at ‖p‖ = {brief(self.until_norm)}"
        return share(claim, measured, self.reached & (away <= close), certificate=text)

    @property
    def ends(self) -> str:
        """Say where the flows end."""
        there, norm = self.reached, self.norm
        texts = []
        if there.any():
            texts.append(f"‖p‖ = {brief(float(f'{norm[there].min():.2e}'))} in {there.sum()} of {len(norm)}")
        if not there.all():
            low, high = (f"{end(norm[~there]):.0f}" for end in (np.min, np.max))
            span = low if low == high else f"{low} to {high}"
            texts.append(f"{(~there).sum()} of {len(norm)} end at ‖p‖ = {span}")
        return ", ".join(texts)


def certificate(feasible: np.ndarray, duality_gap: np.ndarray, primal_residual: np.ndarray) -> str:
    """Write the worst certificate of S problems: duality gap, primal residual, how many are certified."""
    certified = feasible == 1
    total = f"{certified.sum()} of {len(certified)} certified"
    if not certified.any():
        return total
    gap, primal = (round_up(x[certified].max()) for x in (duality_gap, primal_residual))
    return f"gap ≤ {gap}, primal ≤ {primal}, {total}"


def round_up(x: float) -> str:
    """Write a bound with one digit, never smaller than it is."""
    if x == 0 or not np.isfinite(x):
        return f"{x:g}"
    digit, _, exponent = f"{x:.0e}".partition("e")
    if float(f"{digit}e{exponent}") < x:
        digit, _, exponent = f"{(int(digit) + 1) * 10.0 ** int(exponent):.0e}".partition("e")
    return f"{digit}e{int(exponent)}"
