"""First-order methods for p, free of cancellation and underflow, to compare with the exact flow."""

from dataclasses import replace
from typing import ClassVar, Literal, no_type_check

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from jaxattn.attention.batched import sequential_vmap_if_large
from jaxattn.attention.tops import averages, below_top
from jaxattn.base import Phase, State, Task
from jaxattn.base.model import Params
from jaxattn.core.settings import Positive, PositiveInt
from jaxattn.core.spec import StudyParts
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take
from jaxattn.dynamics.flows.flow_phase import require_one_layer
from jaxattn.dynamics.flows.force import direction

Method = Literal["normalized", "polyak", "dual_acceleration", "log_time"]


@no_type_check
@struct.dataclass
class Carry:
    """State of a method, in addition to p.

    Attributes:
        momentum: (d,); g in dual acceleration.
        log_time: (); log t in log-time descent.
    """

    momentum: Array
    log_time: Array


@sequential_vmap_if_large
def log_excess_loss(
    corpus: Corpus, scores: Float[Array, " V"], values: Float[Array, " V"]
) -> Float[Array, ""]:
    """Compute log(L - L*), where L* is the loss if each sequence attends only to its best token.

        L - L* = (1/n) Σ_X log(1 + σ(-y γ*) (e^D - 1)),   D = y (γ* - f) = Σ_s q_s y (γ* - γ_s) ≥ 0,

    where γ* is the token value in X that agrees most with the label. All terms are nonnegative, so
    nothing cancels. L(p) > L* for every p, unless all tokens of every sequence are equally good. The result
    is -inf if all attention is on best tokens. The corpus must have two classes.

    Args:
        corpus: n sequences over V tokens.
        scores: a = E p.
        values: γ = E v.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> scores, values = jnp.zeros(3), jnp.array([1.0, -1.0, 0.0])
        >>> excess = np.exp(ja.dynamics.log_excess_loss(corpus, scores, values))
        >>> loss, best = np.log1p(np.exp(-0.5)), np.log1p(np.exp(-1))
        >>> bool(abs(excess - (loss - best)) < 1e-6)
        True
    """
    bags, present = corpus.bags, corpus.bags.count > 0
    agreement = bags.spread(corpus.targets) * take(values, bags.index.astype(jnp.int32))
    best = bags.max(jnp.where(present, agreement, -jnp.inf))
    below = jnp.where(present, bags.spread(best) - agreement, 0)
    found = averages(bags, -below_top(corpus, scores), [below])
    log_distance = jnp.where(found.idle, -jnp.inf, found.gap + jnp.log(found.mean[0]))
    # To first order, log(1 + σ (e^D - 1)) = σ D. If D underflows, only its order of magnitude matters.
    distance = jnp.exp(log_distance)
    sigma = jnp.exp(-jnp.logaddexp(0, best))
    tiny = distance < 1e-9
    exact = jnp.log(jnp.log1p(sigma * jnp.expm1(jnp.where(tiny, 1, distance))))
    log_excess = jnp.where(tiny, log_distance - jnp.logaddexp(0, best), exact)
    highest = log_excess.max()
    shift = jnp.where(highest == -jnp.inf, 0, highest)
    return shift + jnp.log(jnp.exp(log_excess - shift).mean())


class LogDescent(Phase, frozen=True, kw_only=True):
    """First-order method for p, with the gradient computed in the log domain.

    Every method uses u = -∂L/∂p / ‖∂L/∂p‖. In step k, with step size η, the methods move p by

        normalized         Δp = η u
        polyak             Δp = min(η, (L - L*) / ‖∂L/∂p‖) u
        dual_acceleration  Δp = η (g + b),   b = ‖∂L/∂p‖ / (L - L*) u,   after g ← k/(k+1) (g + b)
        log_time           Δp = h t ‖∂L/∂p‖ u,   h = η / (1 + t ‖∂L/∂p‖),   and then t ← e^h t

    See `ja.dynamics.log_excess_loss` for L - L*. The model must be one-layer, with two classes and the
    logistic loss.

    Attributes:
        method: "normalized", "polyak", "dual_acceleration" or "log_time".
        step_size: η. For normalized: the step length. For polyak: the maximum step length (on a plateau, the
            full Polyak step diverges). For dual_acceleration: 1 / max ‖E_s - E_s'‖². For log_time: the step
            in the sum of log t and arc length, starting at t = 1.

    Source:
        Normalised and Polyak steps: Vasudeva et al. 2024 (arXiv 2402.05738). Dual acceleration: Ji, Srebro
        and Telgarsky 2021 (arXiv 2107.00595, Algorithm 1), with L - L* in place of their loss, which has
        infimum 0. log_time is Euler's method for gradient flow in log t, with shorter steps when p moves far.
    """

    is_random: ClassVar[bool] = False
    rotation_invariant: ClassVar[bool] = True
    train: ClassVar[tuple[str, ...]] = ("p",)

    method: Method
    step_size: Positive
    steps: PositiveInt

    def check(self, *context: StudyParts) -> None:
        """Raise InputError unless the model is one-layer, the loss is logistic, and there are two classes."""
        for setting in context:
            require_one_layer(setting.model, setting.loss, setting.data.num_classes)

    def init(self, task: Task, params: Params, key: Array) -> State:
        """Return the initial state."""
        require_one_layer(task.model, task.loss, task.data.train.num_classes)
        carry = Carry(jnp.zeros_like(params.p), jnp.zeros((), params.p.dtype))
        return State(params, carry, jnp.zeros((), jnp.int32), -jnp.ones((), jnp.int32))

    def step(self, task: Task, state: State) -> State:
        """Return the state after one step. A gradient of exactly zero leaves p unchanged."""
        params, corpus = state.params, task.data.train
        u, log_norm = direction(params, corpus)
        log_excess = log_excess_loss(corpus, params.E @ params.p, params.E @ params.v)
        move, carry = self._move(state, u, log_norm, log_excess)
        p = params.p + jnp.where(log_norm == -jnp.inf, 0, move)
        fails = ~jnp.isfinite(p).all()
        return replace(
            state,
            params=params.replace(p=p),
            optimizer=Carry(carry.momentum.astype(p.dtype), carry.log_time.astype(p.dtype)),
            step=state.step + 1,
            failed_at=jnp.where((state.failed_at < 0) & fails, state.step, state.failed_at),
        )

    def _move(self, state: State, u: Array, log_norm: Array, log_excess: Array) -> tuple[Array, Carry]:
        """Return Δp and the new state of the method, given u, log ‖∂L/∂p‖ and log(L - L*)."""
        carry: Carry = state.optimizer
        match self.method:
            case "normalized":
                return self.step_size * u, carry
            case "polyak":
                return jnp.minimum(self.step_size, jnp.exp(log_excess - log_norm)) * u, carry
            case "dual_acceleration":
                pull = jnp.exp(log_norm - log_excess) * u
                # The ratio of two integers would be float32.
                step = state.step.astype(pull.dtype)
                momentum = step / (step + 1) * (carry.momentum + pull)
                return self.step_size * (momentum + pull), Carry(momentum, carry.log_time)
            case "log_time":
                rate = carry.log_time + log_norm
                log_time = carry.log_time + self.step_size * jax.nn.sigmoid(-rate)
                return self.step_size * jax.nn.sigmoid(rate) * u, Carry(carry.momentum, log_time)
