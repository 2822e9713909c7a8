"""Integrate stiff flows with a Rosenbrock pair of orders 4 and 3, and solve the linear systems in each step.

A step solves multiple systems (1 - c J) x = b, where J is the Jacobian of the velocity. With few coordinates,
it uses LU factors. With many coordinates, it does not form J. In coordinates z, let a = a_0 + L z be the
scores, F the forces on the scores, R F the forces on z, and u = R F / ‖R F‖ the velocity, where ‖R F‖ is the
norm in R^d. Then

    J = (1 - u mᵀ) R H L / ‖R F‖,   H = ∂F/∂a,   m = B Bᵀ u,

with B from `coordinates`. For large ‖p‖, most tokens exert almost no force: row s of H is as small as
e^(-gap). Let S be the set of tokens whose rows are not small relative to 1/c. The matrix

    P = 1 - c (1 - u mᵀ) R_S H_SS L_S / ‖R F‖,

in which R, H and L are restricted to S, is the preconditioner. By Woodbury's identity, inverting P requires
only the inverse of an |S| × |S| matrix, and P⁻¹ (1 - c J) differs from 1 only by the neglected rows. The
conjugate residual method, preconditioned with P, converges in a few iterations. All systems in a step have
the same matrix, so each solve starts with the search directions of the previous solves.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, no_type_check, runtime_checkable

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jaxattn.core.arithmetic import nonzero
from jaxattn.core.loops import cond_under_vmap
from jaxattn.data.corpus import Corpus
from jaxattn.dynamics.flows.force import Force, curvature_product, token_curvature

ORDER = 4
GAMMA = 0.25
# Row i: coefficients of stages 0 to i-1 in stage i. The result of a step is y + A[5] · stages + stage 5.
# fmt: off
A = (
    (0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    (1.544, 0.0, 0.0, 0.0, 0.0, 0.0),
    (0.9466785280815826, 0.2557011698983284, 0.0, 0.0, 0.0, 0.0),
    (3.314825187068521, 2.896124015972201, 0.9986419139977817, 0.0, 0.0, 0.0),
    (1.221224509226641, 6.019134481288629, 12.53708332932087, -0.6878860361058950, 0.0, 0.0),
    (1.221224509226641, 6.019134481288629, 12.53708332932087, -0.6878860361058950, 1.0, 0.0),
)
C = (
    (0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    (-5.6688, 0.0, 0.0, 0.0, 0.0, 0.0),
    (-2.430093356833875, -0.2063599157091915, 0.0, 0.0, 0.0, 0.0),
    (-0.1073529058151375, -9.594562251023355, -20.47028614809616, 0.0, 0.0, 0.0),
    (7.496443313967647, -10.24680431464352, -33.99990352819905, 11.70890893206160, 0.0, 0.0),
    (8.083246795921522, -7.981132988064893, -31.52159432874371, 16.31930543123136, -6.058818238834054, 0.0),
)
# Coefficients of the stages in the interpolation between the ends of a step; see `Step.at`.
D = (
    (10.12623508344586, -7.487995877610167, -34.80091861555747, -7.992771707568823, 1.025137723295662, 0.0),
    (-0.6762803392806898, 6.087714651678606, 16.43084320892478, 24.76722511418386, -6.594389125716872, 0.0),
)
# fmt: on


class Solver(NamedTuple):
    """Solver for systems (1 - c J) x = b with multiple right-hand sides b.

    Attributes:
        solve: function (b, known) -> (x, known), with b and x (r,). `known` is a pytree of information that
            speeds up later solves; pass the returned `known` to the next solve.
        known: the value of `known` for the first solve.
    """

    solve: Callable[[Array, Any], tuple[Array, Any]]
    known: Any = ()


def by_factors(jacobian: Float[Array, "r r"], c: Float[Array, ""]) -> Solver:
    """Return a solver for (1 - c J) x = b that uses LU factors."""
    factors = jax.scipy.linalg.lu_factor(jnp.eye(len(jacobian), dtype=jacobian.dtype) - c * jacobian)
    return Solver(lambda b, known: (jax.scipy.linalg.lu_solve(factors, b), known))


class Step(NamedTuple):
    """One step of dy/ds = f(y), from y(s) to y(s + h).

    Attributes:
        start: (r,); y(s).
        end: (r,); y(s + h), from a method of order 4 that is L-stable and stiffly accurate.
        error: (r,); error estimate from the embedded method of order 3.
        stages: (6, r); the stages u_i of `step`.
    """

    start: Array
    end: Array
    error: Array
    stages: Array

    def at(self, fraction: Float[Array, ""]) -> Float[Array, " r"]:
        """Compute y(s + θ h) for a fraction θ of the step, by interpolation of order 3.

            y(s + θ h) = (1 - θ) y(s) + θ y(s + h) + θ (1 - θ) Σ_i (D_1i + θ D_2i) u_i.

        Like the step, the interpolation follows the slow path of a stiff equation, although the stages do
        not.
        """
        bend, skew = jnp.asarray(D, self.end.dtype) @ self.stages
        line = (1 - fraction) * self.start + fraction * self.end
        return line + fraction * (1 - fraction) * (bend + fraction * skew)


def step(
    field: Callable[[Array], Array],
    y: Float[Array, " r"],
    f: Float[Array, " r"],
    solver: Callable[[Array], Solver],
    h: Float[Array, ""],
) -> Step:
    """Take one step of dy/ds = f(y), with five new evaluations and six solves with the same matrix.

        (1 - h γ J) u_i = γ (h f(y_i) + Σ_{j<i} C_ij u_j),   y_i = y + Σ_{j<i} A_ij u_j,   i = 0, ..., 5,

    with constants γ, A and C. The result is y_5 + u_5, and the error estimate is u_5.

    Args:
        field: f.
        y: the current point.
        f: f(y).
        solver: maps c to a solver for (1 - c J) x = b, with J = ∂f/∂y at y.
        h: step length.

    Source:
        RODAS from Hairer & Wanner, Solving Ordinary Differential Equations II, section IV.7.
    """
    a, c = jnp.asarray(A, y.dtype), jnp.asarray(C, y.dtype)
    solve, known = solver(h * GAMMA)

    def stage(i: Array, state: tuple[Array, Any]) -> tuple[Array, Any]:
        stages, known = state
        right = h * field(y + a[i] @ stages) + c[i] @ stages
        found, known = solve(GAMMA * right, known)
        return stages.at[i].set(found), known

    first, known = solve(GAMMA * h * f, known)
    # Loop over the six stages instead of unrolling them, so that the velocity field is compiled only once.
    empty = jnp.zeros((len(A), y.shape[0]), y.dtype)
    stages, _ = jax.lax.fori_loop(1, len(A), stage, (empty.at[0].set(first), known))
    return Step(start=y, end=y + a[-1] @ stages + stages[-1], error=stages[-1], stages=stages)


# Maximum number of coordinates for which the Jacobian is formed explicitly; see docs/notes/flow_on_texts.md.
MANY_DIMS = 512
# Possible numbers of tokens in the factorisation. Shapes are static, so each number requires a separate
# program.
SIZES = (64, 128, 256, 512)
# A token is stiff if the upper bound on its row sum of c J exceeds this. The bounds are loose: on IMDB, five
# matrix-vector products per solve suffice.
_STIFF = 1.0
# Relative residual tolerance of a linear solve, and maximum number of matrix-vector products per step.
_TOLERANCE, _MAX = 1e-8, 60


@runtime_checkable
class Space(Protocol):
    """Interface that `solver` requires from coordinates. `lift` is L, which maps coordinates to scores."""

    corpus: Corpus
    lift: Array

    def metric(self, x: Array) -> Array:
        """Apply the metric of the coordinates to a vector, B Bᵀ x, (r,)."""
        ...

    def force_on_z(self, force: Array) -> Array:
        """Convert a force F on the scores to the force R F on z, (r,)."""
        ...

    def token_force_on_z(self, tokens: Array, rows: Array, force: Array) -> Array:
        """Convert a force on the scores of `tokens` to the force on z, (r,), given their rows of L."""
        ...

    def gram(self, tokens: Array, rows: Array) -> Array:
        """Compute the Gram matrix E_S E_Sᵀ of the embeddings of `tokens`, (k, k), given their rows of L."""
        ...


@no_type_check
@struct.dataclass
class Curved:
    """Jacobian at a point, stored as factors. See the module docstring for the notation.

    Attributes:
        force: force on the scores, as returned by `score_force`.
        velocity: (r,); u.
        size: (); ‖R F‖ in units of the force's scale; 1 if the norm is 0.
        stiffness: (V,); upper bounds on the row sums of J.
    """

    force: Force
    velocity: Array
    size: Array
    stiffness: Array

    @property
    def finite(self) -> Bool[Array, ""]:
        """True if the factors contain no NaN or infinity."""
        return jnp.isfinite(self.stiffness).all() & jnp.isfinite(self.velocity).all()


class _Factors(NamedTuple):
    """LU factors of 1 - c L_S (1 - u mᵀ) R_S H_SS / ‖R F‖, with H_SS and L_S. See the module docstring.

    Each array is padded, with its entries in the upper left corner.
    """

    lu: Array
    pivots: Array
    curvature: Array
    rows: Array


def solver(space: Space, at: Curved, c: Float[Array, ""]) -> Solver:
    """Return a solver for (1 - c J) x = b with c ≥ 0. If the iteration does not converge, x is NaN."""
    vocab = space.lift.shape[0]
    sizes = (*(size for size in SIZES if size < vocab), min(vocab, SIZES[-1]))
    stiffness = c * at.stiffness
    # argsort uses int64 indices, which cannot be lowered in a caller's jit with float64 disabled.
    order = jax.lax.sort((-stiffness, jnp.arange(vocab, dtype=jnp.int32)), num_keys=1)[1]
    chosen = (jnp.asarray(sizes[:-1], jnp.int32) < (stiffness > _STIFF).sum(dtype=jnp.int32)).sum(
        dtype=jnp.int32
    )
    largest, dtype = sizes[-1], at.velocity.dtype
    empty = _Factors(
        jnp.zeros((largest, largest), dtype),
        jnp.zeros(largest, jnp.int32),
        jnp.zeros((largest, largest), dtype),
        jnp.zeros((largest, len(at.velocity)), dtype),
    )
    system = space, at, c / at.size, order
    factors = _of_size(sizes, chosen, _factor, empty, *system)

    def product(x: Array) -> Array:
        return x - c * times(space, at, x)

    def precondition(b: Array) -> Array:
        return _of_size(sizes, chosen, _divide, b, *system, factors)

    def solve(b: Array, known: Directions) -> tuple[Array, Directions]:
        return conjugate_residuals(product, precondition, b, known)

    return Solver(solve, no_directions(len(at.velocity), dtype))


def times(space: Space, at: Curved, x: Float[Array, " r"]) -> Float[Array, " r"]:
    """Multiply the Jacobian by a vector, J x."""
    turned = space.force_on_z(curvature_product(space.corpus, at.force, space.lift @ x)) / at.size
    return turned - at.velocity * (space.metric(at.velocity) @ turned)


def _of_size(
    sizes: tuple[int, ...], chosen: Array, compute: Callable[..., Any], otherwise: Any, *given: Any
) -> Any:
    for i, size in enumerate(sizes):
        otherwise = cond_under_vmap(chosen == i, partial(compute, size), otherwise, *given)
    return otherwise


def _factor(
    size: int, empty: _Factors, space: Space, at: Curved, shift: Array, order: Int[Array, " V"]
) -> _Factors:
    """Compute `_Factors` for the stiffest tokens S.

    This uses L_S (1 - u mᵀ) R_S = E_S E_Sᵀ - (L u)_S (L u)_Sᵀ.
    """
    tokens = order[:size]
    position = jnp.full(len(order), size, jnp.int32).at[tokens].set(jnp.arange(size, dtype=jnp.int32))
    curvature = token_curvature(space.corpus, at.force, position, size)
    rows = space.lift[tokens]
    moved = rows @ at.velocity
    inner = space.gram(tokens, rows) - jnp.outer(moved, moved)
    lu, pivots = jax.scipy.linalg.lu_factor(jnp.eye(size, dtype=inner.dtype) - shift * inner @ curvature)
    return _Factors(
        empty.lu.at[:size, :size].set(lu),
        empty.pivots.at[:size].set(pivots),
        empty.curvature.at[:size, :size].set(curvature),
        empty.rows.at[:size].set(rows),
    )


def _divide(
    size: int,
    b: Float[Array, " r"],
    space: Space,
    at: Curved,
    shift: Array,
    order: Int[Array, " V"],
    factors: _Factors,
) -> Float[Array, " r"]:
    """Apply the inverse preconditioner P⁻¹ to b. See the module docstring for P and the notation.

        P⁻¹ b = b + c (1 - u mᵀ) R_S H_SS y / ‖R F‖,

    where y solves the |S| × |S| system whose matrix is factored in `factors`.
    """
    rows = factors.rows[:size]
    y = jax.scipy.linalg.lu_solve((factors.lu[:size, :size], factors.pivots[:size]), rows @ b)
    product = shift * space.token_force_on_z(order[:size], rows, factors.curvature[:size, :size] @ y)
    return b + product - at.velocity * (space.metric(at.velocity) @ product)


@struct.dataclass
class Directions:
    """Search directions for A x = b whose images under A are orthonormal.

    Attributes:
        directions: (k, r); zeros in unused rows.
        images: (k, r); images under A; zeros in unused rows.
        count: () int32; number of rows in use. These are the first rows.
    """

    directions: Array
    images: Array
    count: Array


def no_directions(size: int, dtype: DTypeLike) -> Directions:
    """Return empty `Directions` with capacity for the maximum number of directions."""
    zeros = jnp.zeros((_MAX, size), dtype)
    return Directions(zeros, zeros, jnp.zeros((), jnp.int32))


def conjugate_residuals(
    product: Callable[[Array], Array],
    precondition: Callable[[Array], Array],
    b: Float[Array, " r"],
    known: Directions,
) -> tuple[Float[Array, " r"], Directions]:
    """Solve A x = b by the method of conjugate residuals with preconditioner P.

    The search directions are P⁻¹ r for the residuals r, combined so that their images under A are
    orthonormal.

    Args:
        product: maps x to A x; A need not be symmetric.
        precondition: maps r to P⁻¹ r.
        b: (r,).
        known: directions from previous systems with the same A.

    Returns:
        The solution x, (r,), and all directions, including the new ones. x is NaN if the capacity of `known`
        does not suffice.

    Source: Eisenstat, Elman and Schultz, SIAM Journal on Numerical Analysis 20 (1983), method GCR.
    """
    goal = _TOLERANCE * jnp.linalg.norm(b)

    def going(state: tuple[Array, Array, Directions]) -> Array:
        _, left, known = state
        return (jnp.linalg.norm(left) > goal) & (known.count < _MAX)

    def improve(state: tuple[Array, Array, Directions]) -> tuple[Array, Array, Directions]:
        x, left, known = state
        direction = precondition(left)
        image = product(direction)
        for _ in range(2):  # Two passes make the result orthogonal up to rounding.
            share = known.images @ image
            direction, image = direction - share @ known.directions, image - share @ known.images
        size = nonzero(jnp.linalg.norm(image))
        direction, image = direction / size, image / size
        step = image @ left
        known = Directions(
            known.directions.at[known.count].set(direction),
            known.images.at[known.count].set(image),
            known.count + 1,
        )
        return x + step * direction, left - step * image, known

    share = known.images @ b
    begin = share @ known.directions, b - share @ known.images, known
    x, left, known = jax.lax.while_loop(going, improve, begin)
    return jnp.where(jnp.linalg.norm(left) <= 10 * goal, x, jnp.nan), known
