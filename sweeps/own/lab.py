"""Custom lab, with a corpus, model, loss, initialisation, phase, optimiser, probe and figure in one file.

`study.toml` refers to these components by import path, for example `kind = "lab.py:Temperature"`. The
optimiser is used in `clipped.toml`. Each component is a pure function of one seed, or a class that is derived
from a jaxattn class and has pure methods. jaxattn runs all seeds and cells of a study in one compiled
program.

Keyword-only arguments and fields are settings. Their values are checked against the annotations, and can be
swept. Cells that differ only in float settings share a program in which these settings are traced. Therefore,
write `jnp.where` instead of `if`, or annotate the setting with `jaxattn.Static[float]`, which compiles one
program per value.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from matplotlib.figure import Figure

import jaxattn as ja


def needle(key: Array, *, vocab_size: int, length: int, sequences: int, shown: float = 1.0) -> ja.data.Corpus:
    """Sample a corpus in which the first token shows the label with probability `shown`.

    Token 0 shows the label -1, and token 1 shows the label +1. All other tokens are noise.
    """
    label_key, token_key, shown_key = jax.random.split(key, 3)
    label = jax.random.bernoulli(label_key, 0.5, (sequences,)).astype(jnp.int32)  # 0 or 1
    noise = jax.random.randint(token_key, (sequences, length), 2, vocab_size)
    is_shown = jax.random.bernoulli(shown_key, shown, (sequences,))
    tokens = noise.at[:, 0].set(jnp.where(is_shown, label, noise[:, 0]))
    return ja.data.from_draws(tokens, 2 * label - 1, vocab_size=vocab_size, num_classes=2)


class Params(NamedTuple):
    """Parameters of the model: named arrays in a NamedTuple, a dict, or a dataclass that is a pytree."""

    E: Array  # (V, d) embeddings
    p: Array  # (d,) query
    v: Array  # (d,) read-out vector
    log_temperature: Array  # () log τ


class Temperature(ja.TokenModel):
    """Attention f(X) = Σ_i q_i E_{x_i}·v with q = softmax(E_X p / τ) and a trainable temperature τ."""

    dim: int
    temperature: float = 1.0

    def init(self, key: Array, like: ja.data.Corpus, *, dtype: jnp.dtype) -> Params:
        """Sample the initial parameters for one seed."""
        plain = ja.models.OneLayer(dim=self.dim)
        E, p, v = jax.tree.leaves(plain.init(key, like, dtype=dtype))
        return Params(E, p, v, jnp.log(jnp.asarray(self.temperature, dtype)))

    def scores_and_values(self, params: Params) -> tuple[Array, Array]:
        """Compute the scores and the values of all tokens as two (V,) arrays.

        f is the mean of the values, weighted by the softmax of the scores.
        """
        return params.E @ params.p / jnp.exp(params.log_temperature), params.E @ params.v


def polynomial(logits: Array, labels: Array, *, power: float = 1.0) -> Array:
    """Compute the convex loss (1 + m)^(-power) for margins m = y f ≥ 0, and 1 - power · m for m < 0."""
    m = labels * logits
    return jnp.where(m < 0, 1 - power * m, (1 + jax.nn.relu(m)) ** -power)


def of_norm(key: Array, drawn: Array, *, norm: float) -> Array:
    """Rescale the initial parameter that the model sampled to the given norm."""
    return norm * drawn / jnp.linalg.norm(drawn)


class SignDescent(ja.Phase, frozen=True, kw_only=True):
    """Sign descent, which moves every trained entry by step_size / √t against the sign of its derivative."""

    train: tuple[str, ...] = ("p",)
    step_size: float
    steps: int

    def step(self, task: ja.dynamics.Task, state: ja.dynamics.State) -> ja.dynamics.State:
        """Take one step. `task` contains the model, the loss, and the corpora of the seed."""
        of = {"outputs": task.model.outputs, "per_sequence": task.loss}
        _, slopes = ja.dynamics.loss_and_gradients(state.params, task.data.train, self.train, **of)
        size = self.step_size / jnp.sqrt(state.step + 1.0)
        moved = {name: getattr(state.params, name) - size * jnp.sign(slope) for name, slope in slopes.items()}
        return state.replace(params=state.params._replace(**moved))


def clipped(step_size: optax.Schedule, *, limit: float = 1.0) -> optax.GradientTransformation:
    """Return gradient descent that clips the global norm of the gradient to `limit` before each step."""
    return optax.chain(optax.clip_by_global_norm(limit), optax.scale_by_learning_rate(step_size))


def tokens_attended(params: Params, corpus: ja.data.Corpus, *, order: ja.Static[float] = 2.0) -> Array:
    """Compute the effective number of attended tokens, averaged over sequences.

    For a sequence, it is (Σ_i q_i^order)^(1 / (1 - order)).
    """
    if order == 1:  # a Python branch, hence `Static`
        raise ValueError("order: 1 would be the exponential of the entropy; use another order")
    scores = params.E @ params.p / jnp.exp(params.log_temperature)
    weights = jnp.exp(scores - scores.max())
    # The attention-weighted average of 1/weights gives the normaliser: Σ_i q_i / w_i = T / Z.
    normaliser = corpus.lengths / ja.attention.attend(corpus, scores, 1 / weights)
    moment = ja.attention.attend(corpus, scores, weights ** (order - 1)) / normaliser ** (order - 1)
    return (moment ** (1 / (1 - order))).mean()


def attended(results: ja.Results, *, phase: str = "query", metric: str = "tokens_attended") -> Figure:
    """Effective number of attended tokens, mean over seeds with 95 % intervals."""
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    table = results.aggregate(metrics=[metric], phases=[phase])
    for cell, rows in table.groupby("cell"):
        axes.plot(rows["step"], rows["mean"], label=results.cell_words(cell).lstrip(", "))
        axes.fill_between(rows["step"], rows["mean_low"], rows["mean_high"], alpha=0.2)
    axes.set(xscale="symlog", xlabel="step", ylabel=results.label(metric))
    axes.legend()
    return figure
