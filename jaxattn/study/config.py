"""What a sweep file may say: frozen types, one for each table of the file."""

from typing import Annotated, Any, Literal

import msgspec

from jaxattn.data.readers import TextSource
from jaxattn.dynamics import optimizers
from jaxattn.dynamics.log_descent import Method

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Seeds = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Classes = Annotated[int, msgspec.Meta(ge=2)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
HalfShare = Annotated[float, msgspec.Meta(ge=0, le=0.5)]
Names = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _Tagged(_Table, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    pass


class _Synthetic(_Tagged, frozen=True, kw_only=True):
    """What all generators share.

    `label_noise` replaces each training label with this probability by another class; the validation
    sequences are like the training sequences, label noise included, and the test sequences are clean.
    """

    vocab_size: PositiveInt
    length: PositiveInt
    sequences: PositiveInt
    test_sequences: Count = 0
    validation_sequences: Count = 0
    label_noise: HalfShare = 0.0


class _Classes(_Synthetic, frozen=True, kw_only=True):
    """Generators with relevant tokens of K classes."""

    relevant: PositiveInt
    num_classes: Classes = 2


class Assumption1(_Classes, frozen=True, kw_only=True, tag="assumption1"):
    """Exactly one completely positive or negative token per sequence; a fresh corpus for every seed."""


class MultiRelevant(_Classes, frozen=True, kw_only=True, tag="multi_relevant"):
    """Several relevant tokens per sequence; a fresh corpus for every seed."""

    relevant_per_sequence: PositiveInt


class Independent(_Classes, frozen=True, kw_only=True, tag="independent"):
    """Tokens independent given the label; a fresh corpus for every seed."""

    max_posterior_difference: Share = 0.9
    relevant_mass: Share | None = None


class Topics(_Classes, frozen=True, kw_only=True, tag="topics"):
    """Words of the topic, which is the label, and common words; a fresh corpus for every seed."""

    topic_words: PositiveInt
    min_purity: Share = 0.0
    max_purity: Share = 1.0


class Xor(_Synthetic, frozen=True, kw_only=True, tag="xor"):
    """The label is whether two tokens agree, α = 0 for every token; a fresh corpus for every seed."""

    pairs: PositiveInt = 1


class Negation(_Synthetic, frozen=True, kw_only=True, tag="negation"):
    """One relevant token, whose class a negation token turns round; a fresh corpus for every seed."""

    relevant: PositiveInt
    negated: Share = 0.5


Synthetic = Assumption1 | MultiRelevant | Independent | Topics | Xor | Negation
Data = Synthetic | TextSource


class OneLayer(_Tagged, frozen=True, kw_only=True, tag="one_layer"):
    """The one-layer attention classifier; `dim` is d."""

    dim: PositiveInt


class Mlp(_Tagged, frozen=True, kw_only=True, tag="mlp"):
    """One hidden layer of width `dim` after the softmax."""

    dim: PositiveInt


class TwoLayer(_Tagged, frozen=True, kw_only=True, tag="two_layer"):
    """Self-attention without parameters before the read-out, with a residual connection or without."""

    dim: PositiveInt
    residual: bool = False


class TwoLayerWeights(_Tagged, frozen=True, kw_only=True, tag="two_layer_weights"):
    """Self-attention with a trained matrix W1 before the read-out, whose query is W2 p."""

    dim: PositiveInt
    residual: bool = False


Model = OneLayer | Mlp | TwoLayer | TwoLayerWeights


class OneStep(_Tagged, frozen=True, kw_only=True, tag="one_step"):
    """One full-batch gradient step of size `step_size` on the parameters in `train`."""

    name: str
    step_size: Positive
    train: Names = ("E",)


class Descent(_Tagged, frozen=True, kw_only=True, tag="descent"):
    """Descent with an optax optimiser on the parameters in `train`.

    `batch_size` sequences a step, or all. With `patience`, the loss on the validation corpus is checked every
    `check_every` steps; after that many checks without a new best the descent stops, and the phase ends with
    the best parameters.
    """

    name: str
    train: Names
    optimizer: Literal["sgd", "normalized", "polyak", "adam"]
    step_size: Positive
    steps: PositiveInt
    schedule: optimizers.ScheduleName = "constant"
    warmup: Count = 0
    momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    loss_floor: float = 0.0
    epsilon: Positive = 1e-8
    batch_size: PositiveInt | None = None
    patience: Count = 0
    check_every: PositiveInt = 10


class ExactFlow(_Tagged, frozen=True, kw_only=True, tag="exact_flow"):
    """Exact gradient flow on p until the first of its ends; a step is one of `points` rows of its path."""

    name: str
    until_norm: Positive = 1e6
    until_arc_length: Positive | None = None
    until_direction: NotNegative = 0.0
    max_steps: PositiveInt = 10_000
    rtol: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 1e-5
    points: Annotated[int, msgspec.Meta(ge=3)] = 64

    @property
    def train(self) -> tuple[str, ...]:
        """What moves."""
        return ("p",)

    @property
    def steps(self) -> int:
        """Rows after the start."""
        return self.points - 1


class LogDescent(_Tagged, frozen=True, kw_only=True, tag="log_descent"):
    """A first-order method on p whose gradient is formed in the log domain."""

    name: str
    method: Method
    step_size: Positive
    steps: PositiveInt

    @property
    def train(self) -> tuple[str, ...]:
        """What moves."""
        return ("p",)


Phase = OneStep | Descent | ExactFlow | LogDescent


class Probes(_Table, frozen=True, kw_only=True):
    """What is measured on the way, at log-spaced steps.

    `per_decade` probes in every factor of ten of the steps; `bins` equal bins of the posterior difference
    over [`low`, `high`], none for 0; token-level correlations over tokens with at least `min_count`
    occurrences; tokens with |posterior difference| of at least `important` count as important. With
    `max_margin`, every phase that moves p alone ends by finding the max-margin direction of its selection,
    and every probe's p is held against it.
    """

    per_decade: PositiveInt = 8
    bins: Count = 20
    low: float = -1.0
    high: float = 14 / 15
    min_count: Count = 50
    important: Share = 0.5
    max_margin: bool = False


class Curves(_Tagged, frozen=True, kw_only=True, tag="curves"):
    """Metrics against the step."""

    metrics: tuple[str, ...] | None = None
    phase: str | None = None


class Importance(_Tagged, frozen=True, kw_only=True, tag="importance"):
    """E·v and E·p against the posterior difference."""

    cell: Count = 0
    phase: str | None = None


class OneStepLaw(_Tagged, frozen=True, kw_only=True, tag="one_step_law"):
    """E·v against α after one step, beside the line η0 α/2."""

    cell: Count = 0
    phase: str | None = None


class Scaling(_Tagged, frozen=True, kw_only=True, tag="scaling"):
    """A metric against an axis on log-log scales, with the fitted power."""

    axis: str
    metric: str = "one_step_error"
    phase: str | None = None
    expected: float | None = None
    tolerance: Positive | None = None


class TopTokens(_Tagged, frozen=True, kw_only=True, tag="top_tokens"):
    """The tokens with the highest E·p."""

    cell: Count = 0
    phase: str | None = None
    number: PositiveInt = 20


class Convergence(_Tagged, frozen=True, kw_only=True, tag="convergence"):
    """One metric against another along a phase, on log-log scales, with the fitted power."""

    x: str = "p_norm"
    y: str = "one_minus_cosine"
    phase: str | None = None
    fit_from: Positive | None = None
    fit_until: Positive | None = None
    expected: float | None = None
    tolerance: Positive | None = None


class Diagram(_Tagged, frozen=True, kw_only=True, tag="diagram"):
    """A metric at the end of a phase over two axes, as coloured fields."""

    x_axis: str
    y_axis: str
    metric: str = "important_selected"
    phase: str | None = None


Figure = Curves | Importance | OneStepLaw | Scaling | TopTokens | Convergence | Diagram
Axes = dict[str, Annotated[tuple[int | float | str | bool, ...], msgspec.Meta(min_length=1)]]


class Range(_Table, frozen=True, kw_only=True):
    """Bounds of a quasi-random axis: evenly or, with `log`, by factors; `integer` rounds."""

    low: float
    high: float
    log: bool = False
    integer: bool = False


class Halton(_Table, frozen=True, kw_only=True):
    """Quasi-random points over several axes at once."""

    points: PositiveInt
    axes: Annotated[dict[str, Range], msgspec.Meta(min_length=1)]
    seed: Count = 0


class Sweep(_Table, frozen=True, kw_only=True):
    """A sweep file: data × model × phases × probes, for every setting of the axes and every seed.

    Cells are the product of `axes`, `zip` (axes that go together), `halton` and `cells` (an explicit list),
    without those that match an entry of `exclude`. Each of the `blocks` is a variant of the file: keys that
    it changes, and a grid of its own. `seeds` is a number, a range "first:end" or a list.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    data: Data
    model: Model
    phases: Annotated[tuple[Phase, ...], msgspec.Meta(min_length=1)]
    description: str = ""
    seeds: Seeds | Annotated[str, msgspec.Meta(pattern=r"^\d{1,9}:\d{1,9}$")] | tuple[Count, ...] = 1
    dtype: Literal["float32", "float64"] = "float32"
    chunk: PositiveInt | None = None
    probes: Probes = Probes()
    axes: Axes = {}
    zip: Axes = {}
    halton: Halton | None = None
    cells: tuple[dict[str, int | float | str | bool], ...] = ()
    exclude: tuple[dict[str, Any], ...] = ()
    blocks: dict[str, dict[str, Any]] = {}
    figures: tuple[Figure, ...] = ()

    @property
    def seed_numbers(self) -> tuple[int, ...]:
        """The seeds, in ascending order."""
        if isinstance(self.seeds, int):
            return tuple(range(self.seeds))
        if isinstance(self.seeds, str):
            return tuple(range(*map(int, self.seeds.split(":"))))
        return tuple(sorted(self.seeds))
