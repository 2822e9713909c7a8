"""Gradient flow on p to its end for every seed, and what can be read off there."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxattn import dynamics, theory
from jaxattn.claims import settings
from jaxattn.claims.settings import Problems, Setting
from jaxattn.data.corpus import Corpus
from jaxattn.dynamics import Path
from jaxattn.theory import MaxMargin, Selection

UNTIL = 1e6
# A token within this many nats of its sequence's top score holds at least 5e-5 of the top's attention, and
# counts as selected. Scores that tie in the limit stay within a few nats of each other, all others drift
# apart like margin · ‖p‖: this tells them apart at any ‖p‖ above about 20 / margin.
ATTENDED = 10.0


class Limit(NamedTuple):
    """Where gradient flow on p leads, for S seeds.

    Attributes:
        problems: E, v and the start p_0, with the corpora.
        path: the flow's path, (S, k) rows; NumPy arrays.
        selection: the tokens that are attended to at its end.
        margin: the max-margin direction of that selection, with certificates.
    """

    problems: Problems
    path: Path
    selection: Selection
    margin: MaxMargin

    @property
    def reached(self) -> np.ndarray:
        """Whether the flow came to the ‖p‖ it was to come to: (S,) bool."""
        return self.path.stop == "norm"

    @property
    def certificate(self) -> str:
        """Text of the certificates of all seeds."""
        mm = self.margin
        return certificate(mm.feasible, mm.duality_gap, mm.primal_residual)


def follow(problems: Problems, *, until_norm: float = UNTIL) -> Limit:
    """Follow gradient flow on p, E and v fixed, and solve for the max-margin direction of its selection.

    Args:
        problems: S problems.
        until_norm: end of the flow, ‖p‖.

    Returns:
        Paths, selections and directions.
    """
    params, corpora = problems
    with jax.enable_x64(True):
        path = dynamics.exact_flow(params, corpora, until_norm=until_norm)
        chosen = attended(path.p[:, -1], params.E, corpora)
        mm = theory.max_margin_batch(params.E, corpora, chosen)
    # NumPy arrays stay float64 also where JAX has no x64.
    return Limit(problems, jax.tree.map(np.asarray, path), chosen, mm)


class Flows:
    """The flows that several rows need, each followed once."""

    def __init__(self, seeds: Sequence[int], until_norm: float = UNTIL):
        """Follow the flow of these seeds up to this ‖p‖."""
        self.seeds, self.until_norm = seeds, until_norm
        self._known: dict[Setting, Limit] = {}

    def __call__(self, setting: Setting) -> Limit:
        """Return the limit in a setting, after one step on E."""
        if setting not in self._known:
            problems = settings.after_one_step(setting, self.seeds)
            self._known[setting] = follow(problems, until_norm=self.until_norm)
        return self._known[setting]


def attended(p: Array, E: Array, corpora: Corpus) -> Selection:
    """Select the tokens of each sequence whose score is within `ATTENDED` of the top one, for S seeds."""
    spread = jnp.ptp(jnp.einsum("svm,sm->sv", E, p), axis=1)

    def one(p: Array, E: Array, corpus: Corpus, tie: Array) -> Selection:
        return theory.selection(p, E, corpus, tie=tie)

    return jax.vmap(one)(p, E, corpora, ATTENDED / spread)


def distance(limit: Limit, direction: MaxMargin | None = None) -> np.ndarray:
    """Bound 1 - cos of the angle between the flow's last p and a max-margin direction from above.

    The angle to the computed direction, plus the angle between that one and the true direction that its
    duality gap leaves open: 1 - cos ≤ 1 - √(1 - gap).

    Args:
        limit: the flow.
        direction: the directions; those of the flow's own selection by default.

    Returns:
        (S,) float64, NaN where there is no direction.
    """
    mm = limit.margin if direction is None else direction
    seen = theory.one_minus_cosine(limit.path.p[:, -1], mm.p)
    gap = np.asarray(mm.duality_gap)
    left_open = gap / (1 + np.sqrt(1 - gap))
    half_angle = sum(np.arcsin(np.minimum(np.sqrt(x / 2), 1)) for x in (seen, left_open))
    return 2 * np.sin(np.minimum(half_angle, np.pi / 2)) ** 2


def growth(limit: Limit) -> np.ndarray:
    """Measure margin · t ‖∂L/∂p‖ at the end of the flow, the growth of margin · ‖p‖ per e-fold of time.

    If ‖p‖ grows like log t / margin it is 1; at a finite stationary point it is 0.

    Returns:
        (S,) float64; 0 or NaN where the selection has no margin.
    """
    log_rate = limit.path.log_time[:, -1] + limit.path.log_gradient_norm[:, -1]
    return np.asarray(limit.margin.margin) * np.exp(log_rate)


def relevant_counts(limit: Limit, relevant: int) -> tuple[np.ndarray, np.ndarray]:
    """Count the relevant tokens of every sequence, tokens 0 .. relevant - 1.

    Returns:
        How many distinct ones are selected and how many there are, (S, n) int each.
    """
    important = jnp.arange(limit.problems.params.E.shape[1]) < relevant

    def counts(chosen: Selection, corpus: Corpus) -> tuple[Array, Array]:
        everything = Selection(corpus.bags.count > 0)
        return chosen.important_counts(corpus, important), everything.important_counts(corpus, important)

    selected, present = jax.vmap(counts)(limit.selection, limit.problems.corpora)
    return np.asarray(selected), np.asarray(present)


def certificate(feasible: np.ndarray, duality_gap: np.ndarray, primal_residual: np.ndarray) -> str:
    """Write the worst certificate of S problems: duality gap, primal residual, how many are certified."""
    total = f"{int(feasible.sum())} of {len(feasible)} certified"
    if not feasible.any():
        return total
    gap, primal = (round_up(x[feasible].max()) for x in (duality_gap, primal_residual))
    return f"gap ≤ {gap}, primal ≤ {primal}, {total}"


def round_up(x: float) -> str:
    """Write a bound with one digit, never smaller than it is."""
    if x == 0 or not np.isfinite(x):
        return f"{x:g}"
    digit, _, exponent = f"{x:.0e}".partition("e")
    if float(f"{digit}e{exponent}") < x:
        digit, _, exponent = f"{(int(digit) + 1) * 10.0 ** int(exponent):.0e}".partition("e")
    return f"{digit}e{int(exponent)}"
