"""What a study is made of: one base class for each concept, which built-in things and the user's derive from.

Built-in things have no privilege. A class that derives from one of these can be named in a sweep file by its
import path, or given to `Study`. Its settings are its annotated fields, its optional abilities are the
attributes below, which have defaults: override those that it has. All methods are pure, and traced where they
take arrays. Float settings may be traced too, unless they are annotated `jaxattn.Static[float]`.

A plain function will do where one method is all there is. When it is loaded it becomes a class of its
settings, which are its keyword-only arguments:

    data that is drawn    (key, *, settings) -> Dataset
    data that is shared   (*, settings) -> Dataset
    loss                  (outputs, targets, *, settings) -> (n,)
    start                 (key, drawn, *, settings) -> array like drawn
    probe                 (params, data, *, settings) -> (), (m,) or a dictionary of them
    figure                (results, *, settings) -> matplotlib figure or Drawn

Letters: n examples, V tokens, K classes, d the width of the model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from jaxattn.core import params_by_name
from jaxattn.core.brief import Brief
from jaxattn.core.errors import InputError, shown
from jaxattn.core.params_by_name import Leaf
from jaxattn.core.settings import Spec

if TYPE_CHECKING:  # what stands above
    from jaxattn.attention.scores import Scores
    from jaxattn.data.splits import Loaded, Splits
    from jaxattn.probes.probe_context import ProbeContext

S = TypeVar("S", bound="Dataset")
# Named arrays: a dataclass, a NamedTuple or a dict of them.
Params = Any
# Told what is read, how much of it, and of how much, None if nobody knows; 0 of 0 makes it a remark.
Progress = Callable[[str, int, int | None], None]
Metrics = Mapping[str, np.ndarray]


def silent(what: str, done: int, total: int | None) -> None:
    """Tell nobody."""


class Dataset(Brief, struct.PyTreeNode, repr=False):
    """n examples with targets. A frozen pytree: a subclass is one by the fields that it names.

        class Pairs(ja.Dataset):
            left: jax.Array
            right: jax.Array

    By default all its arrays have n rows, one for each example.

    Attributes:
        targets: (n, ...) what a loss compares outputs with: classes, tokens, numbers or vectors.
    """

    targets: Leaf

    def __init_subclass__(cls, **options: Any) -> None:
        """Make a subclass a frozen pytree of its fields, written in a few lines."""
        parent: Any = super()  # flax, which has no types
        parent.__init_subclass__(**{"repr": False} | options)

    @property
    def num_examples(self) -> int:
        """The number of examples n."""
        return int(self.targets.shape[0])

    @property
    def num_classes(self) -> int | None:
        """The number of classes K that the targets name, -1 and +1 if K = 2; None if they are no classes."""
        return None

    def take(self: S, index: Array) -> S:
        """Take some examples, inside jit and under vmap: a minibatch.

        Args:
            index: (B,) int; numbers of distinct examples.

        Returns:
            B examples of the same kind.
        """
        taken: S = jax.tree.map(lambda x: x[index], self)
        return taken

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """List its arrays with their names."""
        for path, x in jax.tree_util.tree_flatten_with_path(self)[0]:
            yield jax.tree_util.keystr(path, simple=True, separator="."), x

    def check_shapes(self) -> None:
        """Check what shapes tell, of traced arrays too.

        Raises:
            InputError: arrays without a row for every example.
        """
        for name, x in self.arrays():
            if np.ndim(x) == 0 or len(x) != self.num_examples:
                raise InputError(
                    f"{name}: {shown(x)} for {self.num_examples} targets; give one row for each example"
                )

    def check(self) -> None:
        """Check on the host what programs cannot; raises InputError."""
        self.check_shapes()


D = TypeVar("D", bound=Dataset)


class CommonData(Spec, frozen=True, kw_only=True):
    """What data that is drawn and data that is shared have in common: derive from one of these two.

    Attributes:
        pads_vocabulary: whether cells of different V may share a program.
        inert: names of settings that change no number, such as where files lie.
        gives: the kind of data, None if only drawing tells.
        draws_batches: whether batches of any size can be drawn afresh.
        held_out: whether there are validation data.
        vocab_size: V, None if only reading tells.
        num_classes: K.
    """

    may_be_settings: ClassVar[frozenset[str]] = frozenset({"vocab_size", "num_classes"})
    shared: ClassVar[bool]
    pads_vocabulary: ClassVar[bool] = False
    inert: ClassVar[frozenset[str]] = frozenset()

    @property
    def gives(self) -> type[Dataset] | None:
        """The kind of data, None if only drawing tells."""
        return None

    @property
    def draws_batches(self) -> bool:
        """Whether batches of any size can be drawn afresh."""
        return False

    @property
    def held_out(self) -> bool:
        """Whether there are validation data."""
        return False

    @property
    def vocab_size(self) -> int | None:
        """V, None if only reading tells."""
        return None

    @property
    def num_classes(self) -> int:
        """K."""
        return 2

    def batch(self, key: Array, examples: int, used: Array | None = None) -> Dataset:
        """Draw examples afresh, as those that a seed trains on; may be left out.

        Args:
            key: () PRNG key.
            examples: how many.
            used: as in `DrawnData.draw`.

        Returns:
            The examples.
        """
        raise NotImplementedError(f"{type(self).__name__}.batch")


class DrawnData(CommonData, frozen=True, kw_only=True):
    """Data that are drawn afresh for every seed; `jaxattn.Generator` has all but `generate`, for bags."""

    shared: ClassVar[bool] = False

    @property
    def draws_batches(self) -> bool:
        """Whether batches of any size can be drawn afresh."""
        return type(self).batch is not CommonData.batch

    @property
    def tokens(self) -> Sequence[str]:
        """Names of the V tokens; none if there are no tokens."""
        return ()

    def draw(self, key: Array, used: Array | None = None) -> "Splits":
        """Draw the data of one seed.

        Args:
            key: () PRNG key of the seed's data.
            used: () int32, how many of the V tokens to draw from; all if None. Given only to data that
                `pads_vocabulary`.

        Returns:
            Training data, with token statistics if they are bags, and test and validation data if any.
        """
        raise NotImplementedError(f"{type(self).__name__}.draw")


class SharedData(CommonData, frozen=True, kw_only=True):
    """Data that all seeds share, such as texts; `jaxattn.data.Source` has all but the reading of rows."""

    shared: ClassVar[bool] = True

    def load(self, progress: Progress = silent) -> "Loaded":
        """Read the data on the host; called again, the same ones.

        Args:
            progress: told how far the reading is.

        Returns:
            The data, and names of the V tokens.
        """
        raise NotImplementedError(f"{type(self).__name__}.load")


Data = DrawnData | SharedData


class Model(Spec, Generic[D], frozen=True, kw_only=True):
    """A function of data. Its parameters are named arrays: a dataclass, NamedTuple or dict.

    Attributes:
        takes: the kind of data that it takes; any other is refused before anything is compiled.
        parameters: their names, so that wrong ones are found before anything is drawn; () says nothing.
        token_rows: names of the parameters with a row for every token, so that V can be swept in one program.
        attends_to_tokens: whether the scores are those of its softmax over the tokens of a sequence.
        cuts_batches: whether a step on a minibatch is given a corpus of its sequences alone, for models whose
            outputs of a whole corpus cost more than laying out a new one.
        linear_in: name of the parameter that `scores` are linear in; None for a model without them.
        is_one_layer: whether scores are E·p, values E·v and outputs their attention, as theory takes them.
        dim: d, None if it has no such width.
    """

    may_be_settings: ClassVar[frozenset[str]] = frozenset({"dim"})
    takes: ClassVar[type[Dataset]] = Dataset
    parameters: ClassVar[tuple[str, ...]] = ()
    token_rows: ClassVar[tuple[str, ...]] = ()
    attends_to_tokens: ClassVar[bool] = False
    cuts_batches: ClassVar[bool] = False

    @property
    def linear_in(self) -> str | None:
        """Name of the parameter that `scores` are linear in; None for a model without them."""
        return None

    @property
    def is_one_layer(self) -> bool:
        """Whether scores are E·p, values E·v and outputs their attention, as theory takes them."""
        return False

    @property
    def dim(self) -> int | Literal["inf"] | None:
        """The width d, None if it has no such width."""
        return None

    @property
    def has_scores(self) -> bool:
        """Whether its tokens have scores and values, for tables, figures and probes of tokens."""
        return type(self).scores_and_values is not Model.scores_and_values

    @property
    def has_heads(self) -> bool:
        """Whether its attention is softmax over the scores of several heads or queries."""
        return type(self).head_scores is not Model.head_scores

    @property
    def shows_attention(self) -> bool:
        """Whether it tells its attention over the tokens of each example."""
        return type(self).attention is not Model.attention

    def init(self, key: Array, like: D, *, dtype: Any) -> Params:
        """Draw the parameters of one seed.

        Args:
            key: () PRNG key.
            like: the training data, of which only shapes and sizes may be used, such as V and K of a corpus.
            dtype: of all parameters.

        Returns:
            The parameters.
        """
        raise NotImplementedError(f"{type(self).__name__}.init")

    def outputs(self, params: Params, data: D) -> Array:
        """Compute what the loss compares with the targets.

        Args:
            params: as `init` returns them.
            data: n examples.

        Returns:
            (n, ...) of the parameters' dtype; f (n,) for two classes, (n, K) for more.
        """
        raise NotImplementedError(f"{type(self).__name__}.outputs")

    def scores_and_values(self, params: Params) -> tuple[Array, Array]:
        """Compute scores a (V,) and values γ (V,) or (V, K) of the tokens of bags; may be left out."""
        raise NotImplementedError(f"{type(self).__name__}.scores_and_values")

    def head_scores(self, params: Params) -> Array:
        """Compute the scores of each head or query over the tokens of bags, (H, V); may be left out."""
        raise NotImplementedError(f"{type(self).__name__}.head_scores")

    def attention(self, params: Params, data: D) -> Array:
        """Compute attention over the tokens of each example; may be left out.

        Args:
            params: as `init` returns them.
            data: n examples.

        Returns:
            (n, ..., T): of one query, or of several heads and queries. Rows of NaN are no queries, such as
            those of padding.
        """
        raise NotImplementedError(f"{type(self).__name__}.attention")

    def scores(self, params: Params, data: D) -> "Scores":
        """Write scores as a = Φ p, p the parameter `linear_in` in one row, with values; may be left out."""
        raise NotImplementedError(f"{type(self).__name__}.scores")

    def in_span(self) -> "Model[D]":
        """Return the same model in coordinates of the span of its parameters; itself if it has none."""
        return self


class Loss(Spec, frozen=True, kw_only=True):
    """The loss of an example, of which a study minimises the mean; or of a batch of them.

    Attributes:
        coupled: whether it is one number of a whole batch, as contrastive and ranking losses are. A step on a
            minibatch then is given the examples of the batch alone.
    """

    coupled: ClassVar[bool] = False

    @property
    def is_logistic(self) -> bool:
        """Whether it is the logistic loss of two classes, without smoothing."""
        return False

    def why_not(self, outputs: Array, data: Dataset) -> str | None:
        """Say what it misses in outputs and targets, by their shapes and dtypes; None if it takes them."""
        return None

    def __call__(self, outputs: Array, targets: Array) -> Array:
        """Compute ℓ of every example.

        Args:
            outputs: (n, ...) what the model computes; f (n,) for two classes, (n, K) for more.
            targets: (n, ...); of classes -1 and +1 if they are two, 0 .. K-1 if more.

        Returns:
            (n,), of the outputs' dtype; () if it is `coupled`.
        """
        raise NotImplementedError(f"{type(self).__name__}.__call__")


class Start(Spec, frozen=True, kw_only=True):
    """Where one parameter starts, if not where the model draws it.

    Attributes:
        rotation_invariant: whether it commutes with rotations of R^d, so that it may start in a span.
    """

    rotation_invariant: ClassVar[bool] = False

    def __call__(self, key: Array, drawn: Array, tokens: Sequence[str]) -> Array:
        """Make the start of a parameter.

        Args:
            key: () PRNG key, the seed's and the parameter's own.
            drawn: what the model draws.
            tokens: names of the V tokens.

        Returns:
            An array of the shape and dtype of `drawn`.
        """
        raise NotImplementedError(f"{type(self).__name__}.__call__")


class Task(NamedTuple):
    """What a phase works on.

    Attributes:
        model: the model.
        loss: of every example, (outputs, targets) -> (n,), or of a batch.
        data: training, validation and test data of one seed.
        fresh: draws data like those of training, (key, examples=how many); None where they cannot be drawn.
    """

    model: Model[Any]
    loss: Loss
    data: "Splits"
    fresh: Callable[..., Dataset] | None = None


@struct.dataclass
class State:
    """What a descent carries.

    Attributes:
        params: the model's parameters.
        optimizer: optax's state.
        step: () int32; steps taken.
        failed_at: () int32; the first step whose loss or gradient was not finite, -1 if none. Where vectors
            move, gradients of matrices are left out: they show in the loss of the next step.
        key: (2,) uint32; data of the PRNG key that batches are drawn with, None for the full batch.
    """

    params: Leaf
    optimizer: Leaf
    step: Leaf
    failed_at: Leaf
    key: Leaf = None


class Phase(Spec, frozen=True, kw_only=True):
    """Which parameters move, by which dynamics, until when: pure functions of one seed.

    Subclasses have `train` and `steps`, and write `step`, which `advance` repeats, or `init` and `advance`. A
    state is a pytree with at least `params`, `step` and `failed_at`, the step at which it failed or -1;
    `State` is one.

    Attributes:
        name: the phase's name in tables.
        train: names of the parameters that move.
        steps: how many steps it has.
        failure: what it means that a seed failed.
        dtype: the precision of its state in every study; that of the study if None.
        seeds_per_core: how many seeds a core of a CPU takes at a time; as many as its cache holds if None.
        refines: metrics of standard probes that its own ones replace: its state knows them to more digits.
        one_step: whether it is one full gradient step of `step_size`, of which the one-step law speaks.
        batch_size: examples of a step, None for all.
        rotation_invariant: whether a rotation of R^d before it is the same as one after it, so that it may
            run in coordinates of a span.
    """

    may_be_settings: ClassVar[frozenset[str]] = frozenset({"train", "steps", "batch_size", "step_size"})
    failure: ClassVar[str] = "loss or gradient is not finite"
    dtype: ClassVar[str | None] = None
    seeds_per_core: ClassVar[int | None] = None
    refines: ClassVar[tuple[str, ...]] = ()
    one_step: ClassVar[bool] = False

    name: str

    @property
    def train(self) -> Sequence[str]:
        """Names of the parameters that move."""
        raise NotImplementedError(f"{type(self).__name__}.train")

    @property
    def steps(self) -> int:
        """How many steps it has."""
        raise NotImplementedError(f"{type(self).__name__}.steps")

    @property
    def step_size(self) -> float:
        """The size of its one step."""
        raise NotImplementedError(f"{type(self).__name__}.step_size")

    @property
    def batch_size(self) -> int | None:
        """Examples of a step, None for all."""
        return None

    @property
    def rotation_invariant(self) -> bool:
        """Whether it may run in coordinates of a span."""
        return False

    @property
    def beginning(self) -> str:
        """What its start does, in words for whoever waits for it."""
        return "begins"

    def probe_steps(self, per_decade: int) -> list[int]:
        """List the steps to measure at, ascending, 0 and the last among them."""
        return log_spaced(self.steps, per_decade)

    def init(self, task: Task, params: Any, key: Array) -> Any:
        """Make the state that the phase starts with.

        Args:
            task: the model, the loss and the data of one seed.
            params: the parameters that the phase before left.
            key: () PRNG key, for what is drawn on the way; keep it in the state.

        Returns:
            The state.
        """
        zero = jnp.zeros((), jnp.int32)
        return State(params, (), zero, zero - 1)

    def step(self, task: Task, state: Any) -> Any:
        """Take one step: return a state of the same structure, shapes and dtypes."""
        raise NotImplementedError(f"{type(self).__name__}.step")

    def advance(self, task: Task, state: Any, steps: int | Array) -> Any:
        """Take a number of steps, which may be traced; one call with k + l equals two with k and l."""
        return jax.lax.fori_loop(0, steps, lambda _, here: self.step(task, here), state)

    def parameter(self, state: Any, name: str) -> Array:
        """Look up a parameter in its full precision."""
        found: Array = params_by_name.get(state.params, name)
        return found

    def metrics(self, state: Any) -> dict[str, Array]:
        """Tell what the state itself knows: numbers () by name."""
        return {"evaluations": state.step}


def log_spaced(steps: int, per_decade: int) -> list[int]:
    """List steps to probe at: 0, log-spaced in between, and the last."""
    count = int(np.ceil(np.log10(max(steps, 1)) * per_decade)) + 1
    spaced = np.unique(np.rint(np.geomspace(1, steps, count)).astype(int))
    return sorted({0, *spaced.tolist(), steps})


class Measurement(Spec, frozen=True, kw_only=True):
    """What probes of single steps and of whole phases have in common: derive from one of these two.

    Attributes:
        labels: what figures call its metrics, by name.
        rotation_invariant: whether it measures the same in coordinates of a span.
    """

    labels: ClassVar[Mapping[str, str]] = {}
    rotation_invariant: ClassVar[bool] = False

    def why_not(self, task: Task, phase: Phase) -> str | None:
        """Say what it misses in a phase, of which it then measures nothing; None if it applies.

        Args:
            task: the model, the loss, and the data of one seed or of many, of which kinds and static sizes
                may be used, not shapes.
            phase: the phase.

        Returns:
            What is missing, for a plan, such as "wants targets that are classes".
        """
        return None


class Probe(Measurement, frozen=True, kw_only=True):
    """What is measured at single steps.

    Attributes:
        from_step: the first step of a phase that it speaks of.
    """

    from_step: ClassVar[int] = 0

    def remember(self, params: Any) -> Any:
        """Keep something of the start of a phase, which is `context.memory` in `measure`; None is nothing."""
        return None

    def measure(self, context: "ProbeContext") -> Mapping[str, Array]:
        """Measure one seed.

        Args:
            context: parameters, model, loss, data, phase, and what follows from them, each computed once for
                all probes.

        Returns:
            Numbers (), or vectors (m,), by names that no other probe has.
        """
        raise NotImplementedError(f"{type(self).__name__}.measure")


class PhaseProbe(Measurement, frozen=True, kw_only=True):
    """What is measured of a whole phase when it has ended.

    Attributes:
        metrics: names of all that it measures.
    """

    @property
    def metrics(self) -> Sequence[str]:
        """Names of all that it measures."""
        raise NotImplementedError(f"{type(self).__name__}.metrics")

    def observe(self, phase: Phase, state: Any) -> Array:
        """Look at the state of one seed at a probe step; any one shape."""
        raise NotImplementedError(f"{type(self).__name__}.observe")

    def conclude(
        self, history: np.ndarray, params: Params, model: Model[Any], loaded: "Loaded"
    ) -> tuple[Metrics, Metrics]:
        """Measure all seeds, on the host.

        Args:
            history: (S, k, ...) float64; what was observed of S seeds at k probe steps.
            params: the parameters at the end, with a leading axis of seeds.
            model: the model.
            loaded: data, shared by the seeds or those of each.

        Returns:
            What belongs to every probe step, (S, k) each, and to the phase as a whole, (S,) each.
        """
        raise NotImplementedError(f"{type(self).__name__}.conclude")


class Figure(Spec, frozen=True, kw_only=True):
    """A figure of a finished run, drawn on the host."""

    def __call__(self, results: Any) -> Any:
        """Draw it.

        Args:
            results: a `jaxattn.Results`.

        Returns:
            A matplotlib figure, which gets the class's name and the first line of its docstring; or a
            `jaxattn.results.drawn.Drawn` with words of its own.
        """
        raise NotImplementedError(f"{type(self).__name__}.__call__")
