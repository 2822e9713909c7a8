"""The synthetic settings of the scoreboard, and how a seed becomes a problem.

The dynamics know E, p and v through their inner products only, so a problem of any dimension d is kept in
V + 1 + K coordinates of the span of E, p and v: an isometry, after which all d share one compiled program.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn import data, dynamics
from jaxattn.data.corpus import Corpus
from jaxattn.models import one_layer
from jaxattn.models.one_layer import Params

# Seeds whose d-dimensional embeddings are in memory at the same time.
_BATCH = 8


@dataclass(frozen=True)
class Setting:
    """Data, dimension and step size of one experiment; every seed draws a fresh corpus and fresh parameters.

    Attributes:
        kind: the generator in `jaxattn.data`.
        vocab_size: V.
        relevant: number of relevant tokens; they are tokens 0 .. relevant - 1.
        length: tokens per sequence T.
        sequences: number of sequences n.
        dim: d.
        step_size: η0 of the one step on E.
        relevant_per_sequence: r, for `multi_relevant`.
        num_classes: K.
    """

    kind: Literal["assumption1", "independent", "multi_relevant"]
    vocab_size: int
    relevant: int
    length: int
    sequences: int
    dim: int
    step_size: float
    relevant_per_sequence: int = 1
    num_classes: int = 2

    @property
    def words(self) -> str:
        """The setting for reading."""
        several = self.kind == "multi_relevant"
        kind = f"{self.relevant_per_sequence} relevant tokens per sequence" if several else self.kind
        classes = f", K = {self.num_classes}" if self.num_classes > 2 else ""
        sizes = f"V = {self.vocab_size}, n = {self.sequences}, T = {self.length}{classes}"
        return f"{kind}, {sizes}, d = {self.dim}, η0 = {self.step_size:g}"


class Problems(NamedTuple):
    """Problems of S seeds.

    Attributes:
        params: E (S, V, m), p (S, m), v (S, m) or (S, m, K); float64.
        corpora: the corpora, arrays with a leading axis S.
    """

    params: Params
    corpora: Corpus


# Assumption 1 in the sizes that the paper's theory is checked at; 20 of 50 tokens are relevant.
BASE = Setting("assumption1", vocab_size=50, relevant=20, length=8, sequences=200, dim=2048, step_size=200.0)
# The sizes that the one-step law is measured at; 40 of 100 tokens are relevant.
LAW = Setting("independent", vocab_size=100, relevant=40, length=16, sequences=512, dim=4096, step_size=1.0)


@dataclass(frozen=True)
class Plan:
    """What the scoreboard runs.

    Attributes:
        base: where the theory of the flow is checked: Assumption 1, d and η0 large.
        law: data and sizes of the one-step law; `law_dims` are its d.
        law_dims: d at which the error of the one-step law is measured.
        law_classes: K of the multi-class law.
        several: numbers r of relevant tokens per sequence.
        step_sizes: η0 that are not large enough (0 is no step at all), and one that d is too small for.
        dims: d that are not large enough, at the base setting otherwise.
        until_norm: ‖p‖ that the flow is followed to.
        joint_steps: steps that p and v are trained together.
    """

    base: Setting = BASE
    law: Setting = LAW
    law_dims: tuple[int, ...] = (64, 256, 1024, 4096)
    law_classes: int = 4
    several: tuple[int, ...] = (2, 3)
    step_sizes: tuple[float, ...] = (0.0, 5.0, 20.0, 50.0, 1000.0)
    dims: tuple[int, ...] = (8, 16, 64, 256)
    until_norm: float = 1e6
    joint_steps: int = 1000


def seed_keys(seeds: Sequence[int]) -> tuple[Array, Array]:
    """Make the keys of every seed, (S,) for its data and (S,) for its parameters; as in a study."""
    numbers = jnp.asarray(seeds, jnp.uint32)
    keys = jax.vmap(lambda seed: jax.random.split(jax.random.fold_in(jax.random.key(0), seed)))(numbers)
    return keys[:, 0], keys[:, 1]


def initial(setting: Setting, seeds: Sequence[int]) -> Problems:
    """Draw the corpora and the parameters before any training.

    Args:
        setting: what to draw.
        seeds: the S seeds; a seed means the same corpus in settings that differ in d or η0 only.

    Returns:
        The problems.
    """
    with jax.enable_x64(True):
        data_keys, model_keys = seed_keys(seeds)
        sizes = {
            "kind": setting.kind,
            "vocab_size": setting.vocab_size,
            "relevant": setting.relevant,
            "length": setting.length,
            "sequences": setting.sequences,
            "num_classes": setting.num_classes,
        }
        if setting.kind == "multi_relevant":
            sizes["relevant_per_sequence"] = setting.relevant_per_sequence
        corpora = _corpora(data_keys, tuple(sizes.items()))
        params = _parameters(model_keys, setting.vocab_size, setting.dim, setting.num_classes)
        return Problems(params, corpora)


def after_one_step(setting: Setting, seeds: Sequence[int]) -> Problems:
    """Draw the problems and take the one full-batch step of size η0 on E."""
    with jax.enable_x64(True):
        params, corpora = initial(setting, seeds)
        return Problems(_step(params, corpora, setting.step_size), corpora)


@partial(jax.jit, static_argnums=1)
def _corpora(keys: Array, sizes: tuple) -> Corpus:
    arguments = dict(sizes)
    generate = getattr(data, arguments.pop("kind"))
    # Batched sorts take twice as long to compile, and run no faster.
    return jax.lax.map(partial(generate, **arguments), keys)


@partial(jax.jit, static_argnums=(1, 2, 3))
def _parameters(keys: Array, vocab_size: int, dim: int, num_classes: int) -> Params:
    def draw(key: Array) -> Params:
        drawn = one_layer.init(
            key, vocab_size=vocab_size, dim=dim, num_classes=num_classes, dtype=jnp.float64
        )
        return in_span(drawn)

    return jax.lax.map(draw, keys, batch_size=_BATCH)


def in_span(params: Params) -> Params:
    """Write E, p and v in coordinates of their span: the same inner products in fewer numbers.

    Args:
        params: E (V, d), p (d,), v (d,) or (d, K).

    Returns:
        E (V, m), p (m,), v (m,) or (m, K): m = V + 1 + K coordinates, or V - 1 where d < V, padded with 0.
    """
    vocab_size, dim = params.E.shape
    rows = jnp.concatenate([params.E, params.p[None], jnp.atleast_2d(params.v.T)])
    if dim >= len(rows):
        rows = jnp.linalg.cholesky(rows @ rows.T)
    else:
        # With fewer coordinates than tokens the flow moves p itself instead of V dependent numbers.
        width = vocab_size - 1 if dim < vocab_size else len(rows)
        rows = jnp.pad(rows, ((0, 0), (0, width - dim)))
    v = rows[vocab_size + 1 :].T
    return Params(E=rows[:vocab_size], p=rows[vocab_size], v=v[:, 0] if params.v.ndim == 1 else v)


@jax.jit
def _step(params: Params, corpora: Corpus, step_size: float | Array) -> Params:
    return jax.vmap(lambda p, c: dynamics.one_step(p, c, step_size=step_size))(params, corpora)
