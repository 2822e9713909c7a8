"""Custom components, which studies refer to by import path."""

from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

import jaxattn as ja
from jaxattn.core import pytrees


def pairs(key, *, vocab_size: int, sequences: int, swapped: ja.Fraction = 0.0):
    """Sample one token of the label's side and a random one, with sides swapped with a probability."""
    side, other, any_side = jax.random.split(key, 3)
    labels = jnp.where(jnp.arange(sequences) % 2 == 0, 1, -1)
    turned = jax.random.bernoulli(any_side, swapped, (sequences,))
    half = vocab_size // 2
    first = jax.random.randint(side, (sequences,), 0, half) + half * ((labels > 0) ^ turned)
    second = jax.random.randint(other, (sequences,), 0, vocab_size)
    return ja.data.from_draws(jnp.stack([first, second], 1), labels, vocab_size=vocab_size, num_classes=2)


def fixed(*, sequences: int = 12):
    """Return a corpus that all seeds share."""
    return pairs(jax.random.key(7), vocab_size=10, sequences=sequences)


class Pairs(ja.DrawnData):
    """`pairs` as a class."""

    vocab_size: ja.PositiveInt
    sequences: ja.PositiveInt
    swapped: ja.Fraction = 0.0

    def draw(self, key, used=None):
        train = self.batch(key, self.sequences)
        return ja.data.Splits(train, ja.data.token_statistics(train))

    def batch(self, key, examples, used=None, task_key=None):
        return pairs(key, vocab_size=self.vocab_size, sequences=examples, swapped=self.swapped)


class Bilinear(NamedTuple):
    E: jax.Array
    W: jax.Array
    p: jax.Array
    v: jax.Array


class Turned(ja.TokenModel):
    """One layer whose scores are E W p; `sharpness` multiplies them."""

    dim: int
    sharpness: float = 1.0
    rotation: Literal["drawn", "identity"] = "drawn"

    def init(self, key, like, *, dtype):
        keys = jax.random.split(key, 4)
        d = self.dim
        W = jnp.eye(d) if self.rotation == "identity" else jax.random.normal(keys[1], (d, d))
        E = jax.random.normal(keys[0], (like.vocab_size, d)) / d**0.5
        p, v = (jax.random.normal(k, (d,)) / d**0.5 for k in keys[2:])
        return Bilinear(*(x.astype(dtype) for x in (E, W, p, v)))

    def scores_and_values(self, params):
        return self.sharpness * (params.E @ (params.W @ params.p)), params.E @ params.v

    def outputs(self, params, corpus):
        return ja.attention.attend(corpus, *self.scores_and_values(params))


def softened(logits, labels, *, softness: float = 1.0):
    """Squared hinge below a margin of 1."""
    return softness * jnp.maximum(0, 1 - labels * logits) ** 2


def clipped(step_size, *, limit: float = 1.0, momentum: float = 0.0):
    """Gradient clipping before sgd with momentum."""
    return optax.chain(optax.clip_by_global_norm(limit), optax.sgd(step_size, momentum=momentum))


def constant(key, drawn, *, value: float = 0.5):
    """Return an initial parameter with equal entries."""
    return jnp.full_like(drawn, value)


class Wander(ja.Phase, frozen=True, kw_only=True):
    """A gradient step plus Gaussian noise on `train`."""

    train: tuple[str, ...] = ("p",)
    step_size: float
    noise: float = 0.0
    steps: ja.PositiveInt = 3

    def init(self, task, params, key):
        state = super().init(task, params, key)
        return state.replace(key=jax.random.key_data(key))

    def step(self, task, state):
        _, gradients = ja.dynamics.loss_and_gradients(
            state.params, task.data.train, self.train, task.model.outputs, per_sequence=task.loss
        )
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        moved = {
            name: pytrees.get(state.params, name)
            - self.step_size * g
            + self.noise * jax.random.normal(key, g.shape, g.dtype)
            for name, g in gradients.items()
        }
        return state.replace(params=pytrees.replace(state.params, **moved), step=state.step + 1)


def spread(params, corpus, *, scale: float = 1.0):
    """Spread of the query."""
    return scale * params.p.std()


class Travelled(ja.Probe):
    """Distance of the query from its value at the start of the phase."""

    order: ja.Static[float] = 2.0
    labels: ClassVar = {"travelled": "way of p"}

    def remember(self, params):
        return params.p

    def measure(self, seen):
        return {"travelled": jnp.linalg.norm(seen.params.p - seen.memory, self.order)}


class Longest(ja.PhaseProbe):
    """The largest norm of p in a phase, measured at its end."""

    metrics = ("share_of_longest", "longest")

    def skip_reason(self, task, phase):
        return None if "p" in phase.train else "wants a phase that trains p"

    def observe(self, phase, state):
        return phase.parameter(state, "p")

    def conclude(self, history, params, model, loaded):
        norms = (history**2).sum(-1) ** 0.5
        longest = norms.max(1)
        return {"share_of_longest": norms / longest[:, None]}, {"longest": longest}


def last_losses(results, *, metric: str = "loss"):
    """Plot the last losses by seed."""
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot(results.records.query("metric == @metric")["value"].tail(3).to_numpy())
    return figure


def broken(logits, labels):
    raise ZeroDivisionError("a loss of mine")


def of_wrong_shape(logits, labels):
    return (logits * labels).mean()


class Underived:
    """A class that is not derived from ja.Model."""

    def __init__(self, dim):
        self.dim = dim

    def init(self, key, like, *, dtype):
        raise NotImplementedError

    def outputs(self, params, corpus):
        raise NotImplementedError


class WithoutOutputs(ja.Model):
    dim: int = 3

    def init(self, key, like, *, dtype):
        raise NotImplementedError


class RaisesWhenMade(Turned):
    def __post_init__(self):
        raise KeyError("not like this")


NOT_CALLABLE = 3


def pair_of_numbers(params, corpus):
    return jnp.ones((2, 1))
