"""Joint gradient flow on p and v with fixed E, in coordinates of span(E), parametrised by arc length.

With a = E p and γ = E v, the forces F = -∂L/∂a and G = -∂L/∂γ move p and v within the span of the embeddings,

    dp/dt = EᵀF,   F_s = (1/n) Σ_X y g q_s (γ_s - f),       dv/dt = EᵀG,   G_s = (1/n) Σ_X y g q_s,

where q is the attention, f the output and g = sigmoid(-y f). The point z = (z_p, z_v) has twice as many
coordinates as in the flow on p alone; see `coordinates`.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from jaxattn.core.arithmetic import nonzero, sum_of_outer_products
from jaxattn.data.corpus import Corpus
from jaxattn.dynamics.flows.coordinates import RESOLUTION, Coordinates, Local, coordinates
from jaxattn.dynamics.flows.force import Force, by_token, dense, score_force, token_curvature
from jaxattn.dynamics.flows.stiff import Solver, by_factors


@struct.dataclass
class Forces:
    """Forces F and G on scores and values, in units of exp(log_scale).

    Attributes:
        of_scores: F as returned by `score_force`, in units of exp(of_scores.log_scale).
        shift: (); log of the ratio of that unit to exp(log_scale).
        head: (V,); G.
        head_pull: (R, W); w q of each bag entry, w = y g/n.
        log_scale: (); log of the common unit.
        gross: (); Σ |F_s| + Σ |G_s| without cancellation between sequences.
    """

    of_scores: Force
    shift: Array
    head: Array
    head_pull: Array
    log_scale: Array
    gross: Array

    @property
    def scores(self) -> Float[Array, " V"]:
        """Force F on the scores."""
        return jnp.exp(self.shift) * self.of_scores.force


def joint_force(corpus: Corpus, scores: Float[Array, " V"], values: Float[Array, " V"]) -> Forces:
    """Compute F and G, with the magnitude of the largest sequence weight factored out.

    `scores` are a = E p, and `values` are γ = E v. The corpus must have two classes. The term from each
    sequence has full relative precision.
    """
    force = score_force(corpus, scores, values)
    largest = force.log_weight.max()
    share = corpus.targets * jnp.exp(force.log_weight - largest)
    pull = corpus.bags.spread(share) * force.attention
    head, gross = by_token(corpus, pull)
    log_scale = largest - jnp.log(corpus.num_examples)
    shift = force.log_scale - log_scale
    return Forces(
        of_scores=force,
        shift=shift,
        head=head,
        head_pull=pull,
        log_scale=log_scale,
        gross=gross.sum() + jnp.exp(shift) * force.gross,
    )


def joint_curvature(corpus: Corpus, forces: Forces) -> Float[Array, "2 V 2 V"]:
    """Compute ∂(F, G)/∂(a, γ) in units of exp(forces.log_scale).

        ∂F/∂γ = (∂G/∂a)ᵀ = Σ_X w (diag(q) - q qᵀ + k c qᵀ),   ∂G/∂γ = Σ_X w k q qᵀ,

    where c = q (γ - f), w = y g/n, k = ∂ log g/∂f and g = sigmoid(-y f). `token_curvature` computes
    ∂F/∂a.
    """
    force = forces.of_scores
    q, pull = dense(corpus, force.attention), dense(corpus, forces.head_pull)
    leaning = dense(corpus, corpus.bags.spread(force.slope) * force.attention)
    steering = jnp.exp(forces.shift) * dense(corpus, force.pull)
    across = jnp.diag(forces.head) - sum_of_outer_products(pull, q)
    across += sum_of_outer_products(steering, leaning)
    of_head = sum_of_outer_products(pull, leaning)
    own = jnp.exp(forces.shift) * token_curvature(corpus, force)
    return jnp.stack([jnp.stack([own, across], axis=1), jnp.stack([across.T, of_head], axis=1)])


@struct.dataclass
class JointCoordinates:
    """`Flow` on p and v for a given corpus, E and starting point. It ends when ‖p‖ or ‖v‖ reaches its limit.

    Attributes:
        query: coordinates of p.
        head: coordinates of v, as a `Coordinates` object in which v takes the role of p.
        far: (); ‖v‖ at which the path ends, unless ‖p‖ reaches its limit earlier.
    """

    query: Coordinates
    head: Coordinates
    far: Array

    @property
    def zero(self) -> Float[Array, " m"]:
        """Initial point, z = 0."""
        return jnp.concatenate([self.query.zero, self.head.zero])

    @property
    def unit(self) -> Float[Array, ""]:
        """Length scale 1 / max ‖E_s‖, a scalar."""
        return self.query.unit

    def inner(self, x: Float[Array, " m"], y: Float[Array, " m"]) -> Float[Array, ""]:
        """Compute the inner product of two displacements of (p, v)."""
        (x_p, x_v), (y_p, y_v) = jnp.split(x, 2), jnp.split(y, 2)
        return self.query.inner(x_p, y_p) + self.head.inner(x_v, y_v)

    def norm(self, x: Float[Array, " m"]) -> Float[Array, ""]:
        """Compute the norm of a displacement of (p, v)."""
        return jnp.hypot(*self._each(lambda part, x: part.norm(x), x))

    def sine(self, z: Float[Array, " m"], velocity: Float[Array, " m"]) -> Float[Array, ""]:
        """Compute the sine of the angle between p and dp/ds."""
        (z, _), (u, _) = jnp.split(z, 2), jnp.split(velocity, 2)
        return self.query.sine(z, u / nonzero(self.query.norm(u)))

    def error(
        self,
        start: Float[Array, " m"],
        end: Float[Array, " m"],
        error: Float[Array, " m"],
        rtol: float | Float[Array, ""],
    ) -> Float[Array, ""]:
        """Compute the error ratios for p and v, as in `Coordinates.error`, and return the larger ratio."""
        return jnp.maximum(*self._each(lambda part, *x: part.error(*x, rtol), start, end, error))

    def ended(self, z: Float[Array, " m"], until_norm: float | Float[Array, ""]) -> Bool[Array, ""]:
        """Return whether ‖p‖ has reached `until_norm` or ‖v‖ has reached `far`."""
        z_p, z_v = jnp.split(z, 2)
        return self.query.ended(z_p, until_norm) | self.head.ended(z_v, self.far)

    def to_end(
        self, z: Float[Array, " m"], velocity: Float[Array, " m"], until_norm: float | Float[Array, ""]
    ) -> Float[Array, ""]:
        """Return the scalar s for which a straight move by s · `velocity` takes ‖p‖ or ‖v‖ to its limit."""
        (z_p, z_v), (u_p, u_v) = jnp.split(z, 2), jnp.split(velocity, 2)
        return jnp.minimum(self.query.to_end(z_p, u_p, until_norm), self.head.to_end(z_v, u_v, self.far))

    def is_far(self, z_v: Float[Array, " r"]) -> Bool[Array, ""]:
        """Return whether ‖v‖ is so large that v may grow without bound."""
        return self.head.norm(z_v, 1.0) > RESOLUTION * self.far

    def scores_and_values(self, z: Float[Array, " m"]) -> tuple[Float[Array, " V"], Float[Array, " V"]]:
        """Compute the scores a = E p and the values γ = E v at a point."""
        scores, values = self._each(lambda part, z: part.scores + part.lift @ z, z)
        return scores, values

    def velocity(self, z: Float[Array, " m"]) -> Float[Array, " m"]:
        """Compute the velocity dz/ds."""
        pull, _ = self._pull(z)
        return pull / nonzero(self.norm(pull))

    def at(self, z: Float[Array, " m"]) -> Local:
        """Compute the velocity, its Jacobian and the gradient norm, as in `Coordinates.at`."""
        pull, forces = self._pull(z)
        size = self.norm(pull)
        velocity = pull / nonzero(size)
        lift = self.query.lift
        curvature = joint_curvature(self.query.corpus, forces) @ lift
        if self.query.basis is None:
            curvature = jnp.einsum("vr,ivjc->irjc", lift, curvature)
        curvature = curvature.reshape(len(z), len(z)) / nonzero(size)
        metric = jnp.concatenate(self._each(lambda part, x: part.metric(x), velocity))
        along = metric @ curvature
        reach = sum(self._each(lambda part, z: part.norm(z, 1.0), z))
        rounding = jnp.finfo(z.dtype).eps * (1 + reach / self.unit) * forces.gross
        return Local(
            velocity=velocity,
            jacobian=curvature - jnp.outer(velocity, along),
            log_gradient_norm=forces.log_scale + jnp.log(size),
            log_slope=along @ velocity,
            balanced=(RESOLUTION * size * self.unit <= rounding) | self._rests(z, pull, forces),
        )

    def solver(self, jacobian: Array, c: Float[Array, ""]) -> Solver:
        """Return a solver for (1 - c J) x = b, where J is `jacobian`, as returned by `at`."""
        return by_factors(jacobian, c)

    def _rests(self, z: Array, pull: Array, forces: Forces) -> Array:
        (z_p, z_v), (on_p, _) = jnp.split(z, 2), jnp.split(pull, 2)
        gross = jnp.exp(forces.shift) * forces.of_scores.gross
        rounding = jnp.finfo(z.dtype).eps * (1 + self.query.norm(z_p, 1.0) / self.unit) * gross
        return self.is_far(z_v) & (self.query.norm(on_p) * self.unit < rounding)

    def _pull(self, z: Array) -> tuple[Array, Forces]:
        forces = joint_force(self.query.corpus, *self.scores_and_values(z))
        both = jnp.stack([forces.scores, forces.head])
        return (both if self.query.basis is not None else both @ self.query.lift).ravel(), forces

    def _each(self, function: Callable[..., Any], *of_both: Array) -> tuple[Any, ...]:
        halves = zip(*(jnp.split(x, 2) for x in of_both), strict=True)
        return tuple(function(part, *x) for part, x in zip((self.query, self.head), halves, strict=True))


def joint_coordinates(
    E: Float[Array, "V d"], p: Float[Array, " d"], v: Float[Array, " d"], corpus: Corpus, far: float
) -> JointCoordinates:
    """Build the flow that starts at (p, v) and ends at ‖v‖ max ‖E_s‖ = far."""
    query = coordinates(E, p, E @ v, corpus)
    head = query.replace(  # type: ignore[attr-defined]
        start=v, scores=query.values, offset=v if query.basis is None else query.values
    )
    return JointCoordinates(query, head, far * query.unit)
