"""Gradient flow on p in coordinates of the span of the embeddings, parametrised by arc length s.

The path stays in p_0 + span{E_s}, where p_0 is its starting point. It is therefore represented by
r = min(V, d) coordinates z with p = p_0 + Bᵀ z. The scores are a = a_0 + E Bᵀ z, with a_0 = E p_0 and F =
-∂L/∂a:

    V ≤ d:  B = E,  a = a_0 + E Eᵀ z,  dz/ds = F / ‖EᵀF‖;
    V > d:  B = 1,  a = a_0 + E z,     dz/ds = EᵀF / ‖EᵀF‖.

Neither form requires a factorisation of E, and both remain valid if rows of E coincide.
"""

import math
from typing import Any, no_type_check

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from jaxattn.attention.tops import below_top, score_entries, top_scores
from jaxattn.core.arithmetic import nonzero
from jaxattn.core.loops import cond_under_vmap
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take
from jaxattn.dynamics.flows import stiff
from jaxattn.dynamics.flows.force import (
    LOGISTIC,
    Force,
    curvature_bound,
    curvature_product,
    score_force,
    token_curvature,
)
from jaxattn.dynamics.flows.stiff import Solver, by_factors

# Rounding changes scores by ε ‖a‖, and forces by the same relative amount. The flow stops when forces cancel
# so strongly that the relative rounding error in their sum exceeds this value.
RESOLUTION = 1e-3
# A token whose forces cancel is near the top if its score gap to the top is below this value: its weight
# relative to the top token then exceeds e^-7.
NEAR = 7.0
# Score gap to the top beyond which a token is no longer tied with the top tokens.
LEFT = 10.0
# A token leaps if its score is this far below the top before a step and this far above the old top after it.
_LEAP = 2.0
# Maximum change in attention along a segment of balanced points for the segment to count as straight.
_STRAIGHT = 0.05


@no_type_check
@struct.dataclass
class Watch:
    """Conditions on bag entries under which the coordinates describe the flow.

    Attributes:
        idle: (R, W) bool; True for tokens that exert no force; their scores must stay well below the top
            score of their sequence.
        attention: (R, W); initial attention to tokens that slide along a curve of balanced points, or -1 for
            other entries. The attention must stay close to this initial value.
    """

    idle: Array
    attention: Array

    @property
    def slides(self) -> Bool[Array, ""]:
        """True if any token slides along a curve of balanced points."""
        return (self.attention >= 0).any()

    def attention_change(self, corpus: Corpus, scores: Float[Array, " V"]) -> Float[Array, ""]:
        """Return the largest change in attention since the start, relative to the maximum allowed change."""
        bags, slides = corpus.bags, self.attention >= 0
        below = _below_top(corpus, scores)
        weight = jnp.where(slides, bags.count * jnp.exp(-below), 0)
        (total,) = bags.sum(weight)
        attention = weight / bags.spread(jnp.where(total == 0, 1, total))
        return jnp.where(slides, jnp.abs(attention - self.attention), 0).max() / _STRAIGHT

    def broken(self, corpus: Corpus, scores: Float[Array, " V"]) -> Bool[Array, ""]:
        """Return whether any of the conditions is violated at the given scores."""
        below = _below_top(corpus, scores)
        met = self.idle & (below < NEAR)
        left = (self.attention > jnp.exp(-LEFT)) & (below > LEFT)
        return (met | left).any() | (self.attention_change(corpus, scores) >= 1)


def leap(corpus: Corpus, before: Float[Array, " V"], after: Float[Array, " V"]) -> Float[Array, ""]:
    """Compute how far tokens overshoot the top of their sequence in a step between two score vectors.

    A token exerts its full force only near the top. A step from far below the top to far above it misses
    this force at both ends.

    Returns:
        The maximum over tokens of min(distance below the top before the step, distance above the former
        top token after it), in units of the maximum allowed value. It is 0 or negative if no sequence
        has a new top token.
    """
    bags = corpus.bags
    token, present = bags.index.astype(jnp.int32), bags.count > 0
    below = below_top(corpus, before)
    score = take(after, token)
    former = bags.max(jnp.where(below == 0, score, -jnp.inf))
    above = jnp.where(present, score - bags.spread(former), -jnp.inf)
    return jnp.minimum(below, above).max() / _LEAP


def _below_top(corpus: Corpus, scores: Array) -> Array:
    """Return each entry's score gap to the top of its sequence, including entries with zero count."""
    bags = corpus.bags
    top = top_scores(bags, score_entries(corpus, scores))
    return bags.spread(top) - take(scores, bags.index.astype(jnp.int32))


@no_type_check
@struct.dataclass
class Local:
    """Flow evaluated at a point.

    Attributes:
        velocity: (r,); u = dz/ds, zeros if the gradient is exactly zero.
        jacobian: (r, r); ∂u/∂z. If r is large, its factors, from which products are computed.
        log_gradient_norm: (); log ‖∂L/∂p‖.
        log_slope: (); derivative of log ‖∂L/∂p‖ with respect to arc length.
        balanced: () bool; True if the forces cancel up to rounding.
    """

    velocity: Array
    jacobian: Array | stiff.Curved
    log_gradient_norm: Array
    log_slope: Array
    balanced: Array

    @property
    def finite(self) -> Bool[Array, ""]:
        """True if the Jacobian contains no NaN or infinity."""
        jacobian = self.jacobian
        return jacobian.finite if isinstance(jacobian, stiff.Curved) else jnp.isfinite(jacobian).all()


@struct.dataclass
class Coordinates:
    """Flow on p for a given corpus, keys E, values and starting point.

    See the module docstring for the notation.

    Attributes:
        corpus: n sequences.
        values: γ per token, (V,), or per bag entry, (R, W); with a last axis of size K for K > 2 classes.
        start: (d,); p_0.
        scores: (V,); a_0 = E p_0.
        basis: (r, d); B, or None for the identity.
        lift: (V, r); E Bᵀ.
        offset: (r,); B p_0.
        lengths: (V,); ‖E_s‖.
        unit: (); 1 / max ‖E_s‖. A step of this length in p changes scores by at most 1.
        weigh: function for the weights of the sequences, as a pytree; see `score_force`.
        steepest: (); upper bound on the slope of the log gradient norm. Larger slopes are treated as
            numerical errors.
        log_limit: (); the path ends with status BALANCED once log Σ |∂L/∂a_s|, summed over sequences and
            tokens, exceeds this value.
        log_floor: (); the path also ends with status BALANCED once log ‖∂L/∂p‖ falls below this value.
        watch: conditions on tokens. The path also ends with status BALANCED if any of them is violated.
        pairs: second-order terms of the loss for pairs whose first-order terms cancel.
    """

    corpus: Corpus
    values: Array
    start: Array
    scores: Array
    basis: Array | None
    lift: Array
    offset: Array
    lengths: Array
    unit: Array
    weigh: Any = LOGISTIC
    steepest: Array | float = math.inf
    log_limit: Array | float = math.inf
    log_floor: Array | float = -math.inf
    watch: Watch | None = None
    pairs: Any = None

    def p(self, z: Float[Array, "*k r"]) -> Float[Array, "*k d"]:
        """Convert coordinates z to the parameter, p = p_0 + Bᵀ z."""
        return self.start + (z if self.basis is None else z @ self.basis)

    @property
    def embeddings(self) -> Float[Array, "V d"]:
        """Embeddings E."""
        return self.lift if self.basis is None else self.basis

    @property
    def rows(self) -> Float[Array, "V r"]:
        """Embeddings in orthonormal coordinates of their span, or of R^d."""
        return self.lift if self.basis is None else jnp.linalg.qr(self.basis.T, mode="r").T

    def moved(self, z: Float[Array, " r"]) -> "Coordinates":
        """Return the same flow, starting at the point z."""
        start, scores = self.p(z), self.scores + self.lift @ z
        offset = start if self.basis is None else scores
        return self.replace(start=start, scores=scores, offset=offset)  # type: ignore[attr-defined]

    def metric(self, x: Float[Array, " r"]) -> Float[Array, " r"]:
        """Apply the metric of the coordinates to a vector, B Bᵀ x."""
        return x if self.basis is None else self.lift @ x

    def inner(self, x: Float[Array, " r"], y: Float[Array, " r"]) -> Float[Array, ""]:
        """Compute the inner product Bᵀ x · Bᵀ y of two vectors given in coordinates."""
        return x @ self.metric(y)

    def norm(self, x: Float[Array, " r"], multiple: Float[Array, ""] | float = 0.0) -> Float[Array, ""]:
        """Compute the norm ‖Bᵀ x + multiple · p_0‖ of a vector x given in coordinates."""
        square = x @ (self.metric(x) + 2 * multiple * self.offset) + multiple**2 * (self.start @ self.start)
        return jnp.sqrt(jnp.maximum(square, 0))

    @property
    def zero(self) -> Float[Array, " r"]:
        """Initial point, z = 0."""
        return jnp.zeros_like(self.offset)

    def error(
        self,
        start: Float[Array, " r"],
        end: Float[Array, " r"],
        error: Float[Array, " r"],
        rtol: float | Float[Array, ""],
    ) -> Float[Array, ""]:
        """Compute ‖Bᵀ error‖ divided by the tolerance.

        The tolerance is rtol (‖p‖ + 1 / max ‖E_s‖), or a tenth of the step if that is smaller: if only a late
        stage of the step encounters a force, the error is of the order of the step. The result also exceeds 1
        if attention changes too much along a curve of balanced points, or if `leap` exceeds 1.
        """
        tenth = 0.1 * (self.norm(end - start) + rtol * self.unit)
        relative = self.norm(error) / jnp.minimum(rtol * (self.norm(end, 1.0) + self.unit), tenth)
        # A step may overshoot the end of a straight segment of balanced points, but not by much.
        far = jnp.maximum(self._slid(end) / 2, self._leapt(start, end))
        return jnp.maximum(relative, far)

    def ended(self, z: Float[Array, " r"], until_norm: float | Float[Array, ""]) -> Bool[Array, ""]:
        """Return whether ‖p‖ has reached `until_norm`, as a boolean scalar."""
        return self.norm(z, 1.0) >= until_norm

    def to_end(
        self, z: Float[Array, " r"], velocity: Float[Array, " r"], until_norm: float | Float[Array, ""]
    ) -> Float[Array, ""]:
        """Return the s with ‖p + s · velocity‖ = until_norm, infinite if `velocity` is zero.

        `velocity` may have any length.
        """
        norm, ahead = self.norm(z, 1.0), self.ahead(z, velocity)
        # With an infinite radius, the quotient below would be NaN.
        radius = jnp.minimum(until_norm, 1e150)
        square = jnp.maximum((radius - norm) * (radius + norm), 0)
        speed = jnp.square(self.norm(velocity))
        root = jnp.sqrt(ahead**2 + speed * square)
        distance = jnp.where(ahead > 0, square / (root + ahead), (root - ahead) / nonzero(speed))
        distance = jnp.where(speed == 0, jnp.inf, distance)
        # The path is curved, so the step ends slightly before or beyond the sphere; aim for slightly beyond.
        return (1 + 1e-6) * distance

    def ahead(self, z: Float[Array, " r"], velocity: Float[Array, " r"]) -> Float[Array, ""]:
        """Compute the inner product p · dp/ds."""
        return velocity @ (self.metric(z) + self.offset)

    def sine(self, z: Float[Array, " r"], velocity: Float[Array, " r"]) -> Float[Array, ""]:
        """Compute the sine of the angle between p and dp/ds, without cancellation at small angles."""
        along = self.ahead(z, velocity) / jnp.square(self.norm(z, 1.0))
        return self.norm(velocity - along * z, -along)

    def velocity(self, z: Float[Array, " r"]) -> Float[Array, " r"]:
        """Compute the velocity dz/ds."""
        pull, _ = self._pull(z)
        return pull / nonzero(self.norm(pull))

    def at(self, z: Float[Array, " r"]) -> Local:
        """Compute the velocity u, its Jacobian (1 - u (B Bᵀ u)ᵀ) (∂F/∂z) / ‖BᵀF‖, and the gradient norm.

        Here F is the force on z: -∂L/∂a if V ≤ d, and -Eᵀ ∂L/∂a if V > d.
        """
        pull, force = self._pull(z)
        size = self.norm(pull)
        velocity = pull / nonzero(size)
        jacobian, slope = (self._products if len(z) > stiff.MANY_DIMS else self._matrix)(
            velocity, size, force
        )
        rounding = jnp.finfo(z.dtype).eps * (1 + self.norm(z, 1.0) / self.unit) * force.gross
        log_gradient_norm = force.log_scale + jnp.log(size)
        return Local(
            velocity=velocity,
            jacobian=jacobian,
            log_gradient_norm=log_gradient_norm,
            log_slope=jnp.clip(slope, -self.steepest, self.steepest),
            balanced=(RESOLUTION * size * self.unit <= rounding)
            | (force.log_gross > self.log_limit)
            | (log_gradient_norm < self.log_floor)
            | self.broken(z),
        )

    def solver(self, jacobian: Array | stiff.Curved, c: Float[Array, ""]) -> Solver:
        """Return a solver for (1 - c J) x = b, where J is the Jacobian from `at`."""
        if isinstance(jacobian, stiff.Curved):
            return stiff.solver(self, jacobian, c)
        return by_factors(jacobian, c)

    def force_on_z(self, force: Float[Array, " V"]) -> Float[Array, " r"]:
        """Convert a force on the scores to the force on z, up to a positive factor."""
        return force if self.basis is not None else force @ self.lift

    def token_force_on_z(
        self, tokens: Int[Array, " k"], rows: Float[Array, "k r"], force: Float[Array, " k"]
    ) -> Float[Array, " r"]:
        """Convert a force on the scores of `tokens` to the force on z, given their rows of `lift`."""
        return jnp.zeros_like(self.offset).at[tokens].set(force) if self.basis is not None else force @ rows

    def gram(self, tokens: Int[Array, " k"], rows: Float[Array, "k r"]) -> Float[Array, "k k"]:
        """Compute the Gram matrix of the embeddings of `tokens`, given their rows of `lift`."""
        return rows[:, tokens] if self.basis is not None else rows @ rows.T

    def _matrix(self, velocity: Array, size: Array, force: Force) -> tuple[Array, Array]:
        """Compute the Jacobian and the slope of the log gradient norm."""
        curvature = token_curvature(self.corpus, force) @ self.lift
        curvature = (curvature if self.basis is not None else self.lift.T @ curvature) / nonzero(size)
        along = self.metric(velocity) @ curvature
        return curvature - jnp.outer(velocity, along), along @ velocity

    def _products(self, velocity: Array, size: Array, force: Force) -> tuple[stiff.Curved, Array]:
        """Return the Jacobian as factors for products, and the slope of the log gradient norm."""
        size = nonzero(size)
        bound = curvature_bound(self.corpus, force, self.lengths) / size
        moved = self.lift @ velocity
        slope = moved @ curvature_product(self.corpus, force, moved) / size
        return stiff.Curved(force, velocity, size, bound), slope

    def broken(self, z: Float[Array, " r"]) -> Bool[Array, ""]:
        """Return whether any condition in `watch` is violated at the point z."""
        if (watch := self.watch) is None:
            return jnp.asarray(False)
        scores = self.scores + self.lift @ z
        wanted = watch.idle.any() | watch.slides
        given = watch, self.corpus, scores
        return cond_under_vmap(
            wanted, lambda _, watched, *at: watched.broken(*at), jnp.asarray(False), *given
        )

    def _slid(self, z: Array) -> Array:
        if (watch := self.watch) is None:
            return jnp.zeros((), z.dtype)
        scores = self.scores + self.lift @ z
        given = watch, self.corpus, scores
        return cond_under_vmap(
            watch.slides,
            lambda _, watched, *at: watched.attention_change(*at),
            jnp.zeros((), z.dtype),
            *given,
        )

    def _leapt(self, start: Array, end: Array) -> Array:
        def from_how_far(_: Any, flow: Coordinates, *ends: Array) -> Array:
            return leap(flow.corpus, *(flow.scores + flow.lift @ z for z in ends))

        nothing = jnp.zeros((), start.dtype)
        return cond_under_vmap(jnp.isfinite(self.log_limit), from_how_far, nothing, self, start, end)

    def log_gradient_norm(self, z: Float[Array, " r"]) -> Float[Array, ""]:
        """Compute log ‖∂L/∂p‖."""
        pull, force = self._pull(z)
        return force.log_scale + jnp.log(self.norm(pull))

    def log_gross(self, z: Float[Array, " r"]) -> Float[Array, ""]:
        """Compute log Σ |∂L/∂a_s|, with the sum of the absolute values over all sequences and tokens."""
        return self._pull(z)[1].log_gross

    def _pull(self, z: Array) -> tuple[Array, Force]:
        scores = self.scores + self.lift @ z
        force = score_force(self.corpus, scores, self.values, self.weigh)
        if self.pairs is not None:
            force = self.pairs.add_to(force, scores)
        return self.force_on_z(force.total), force


def coordinates(
    E: Float[Array, "V d"],
    p: Float[Array, " d"],
    values: Float[Array, " V *K"] | Float[Array, "R W *K"],
    corpus: Corpus,
) -> Coordinates:
    """Build the coordinates in which the flow on one corpus is integrated, starting at p."""
    spans = E.shape[0] <= E.shape[1]
    scores, squares = E @ p, jnp.square(E).sum(axis=1)
    return Coordinates(
        corpus=corpus,
        values=values,
        start=p,
        scores=scores,
        basis=E if spans else None,
        lift=E @ E.T if spans else E,
        offset=scores if spans else p,
        lengths=jnp.sqrt(squares),
        unit=1 / jnp.sqrt(squares.max()),
    )
