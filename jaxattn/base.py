"""What the things of a study must be able to do: one protocol for each concept.

Built-in things have no privilege: whatever has these attributes and methods can be named in a sweep file
by its import path, or given to `Study`. All methods are pure, and traced where they take arrays. Settings
are the fields of a frozen class (a `jaxattn.Spec` or a frozen dataclass) or, for functions, the keyword-only
arguments; floats among them may be traced too, unless they are annotated `jaxattn.Static[float]`.

Wherever a protocol has one method that matters, a plain function will do:

    generator       (key, *, settings) -> Corpus
    shared corpus   (*, settings) -> Corpus
    loss            (logits, labels, *, settings) -> (n,)
    start           (key, drawn, *, settings) -> array like drawn
    probe           (params, corpus, *, settings) -> (), (m,) or a dictionary of them
    figure          (results, *, settings) -> matplotlib figure or Drawn

Letters: V tokens, n sequences, K classes, d the width of the model.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jax import Array

from jaxattn.data.corpus import Corpus
from jaxattn.data.splits import Loaded, Splits

Progress = Callable[[str, int, int | None], None]


@runtime_checkable
class Data(Protocol):
    """What generators and sources of corpora have in common.

    Attributes:
        shared: whether all seeds have the same corpora.
        pads_vocabulary: whether cells of different V may share a program.
        held_out: whether there is a validation corpus.
    """

    @property
    def shared(self) -> bool: ...  # noqa: D102
    @property
    def pads_vocabulary(self) -> bool: ...  # noqa: D102
    @property
    def held_out(self) -> bool: ...  # noqa: D102


@runtime_checkable
class Generator(Data, Protocol):
    """Corpora that are drawn afresh for every seed; `jaxattn.Generator` has all but `generate`.

    Attributes:
        tokens: names of the V tokens.
    """

    @property
    def tokens(self) -> Sequence[str]: ...  # noqa: D102

    def draw(self, key: Array, used: Array | None = None) -> Splits:
        """Draw the corpora of one seed.

        Args:
            key: () PRNG key of the seed's data.
            used: () int32, how many of the V tokens to draw from; all if None. Asked for only if
                `pads_vocabulary`.

        Returns:
            Training corpus with its token statistics, and test and validation corpora if there are any.
        """
        ...


@runtime_checkable
class Source(Data, Protocol):
    """Corpora that all seeds share, such as texts; `jaxattn.data.Source` has all but the reading of rows."""

    def load(self, progress: Progress) -> Loaded:
        """Read the corpora on the host; called again, the same ones.

        Args:
            progress: told (what is read, how much, of how much).

        Returns:
            The corpora, and names of the V tokens.
        """
        ...


@runtime_checkable
class Model(Protocol):
    """A classifier of bags of tokens. Its parameters are named arrays: a dataclass, NamedTuple or dict.

    A model may also have
        scores_and_values(params) -> a (V,) and γ (V,) or (V, K), for tables, figures and probes of tokens;
        attends_to_tokens, whether a are the scores of its softmax over the tokens of a sequence;
        parameters, their names, so that wrong ones are found before anything is drawn;
        token_rows, names of the parameters with a row for every token, so that V can be swept in one program;
        cuts_batches, whether a step on a minibatch is given a corpus of its sequences alone, for models
            whose logits of a whole corpus cost more than laying out a new one.
    """

    def init(self, key: Array, *, vocab_size: int, num_classes: int, dtype: Any) -> Any:
        """Draw the parameters of one seed.

        Args:
            key: () PRNG key.
            vocab_size: V.
            num_classes: K.
            dtype: of all parameters.

        Returns:
            The parameters.
        """
        ...

    def logits(self, params: Any, corpus: Corpus) -> Array:
        """Compute f of every sequence.

        Args:
            params: as `init` returns them.
            corpus: n sequences over V tokens.

        Returns:
            (n,) for two classes, (n, K) for more; of the parameters' dtype.
        """
        ...


@runtime_checkable
class Loss(Protocol):
    """The loss of a sequence; a study minimises its mean."""

    def __call__(self, logits: Array, labels: Array) -> Array:
        """Compute ℓ of every sequence.

        Args:
            logits: f, (n,) for two classes, (n, K) for more.
            labels: (n,) int32; -1 and +1 for two classes, 0 .. K-1 for more.

        Returns:
            (n,), of the logits' dtype.
        """
        ...


@runtime_checkable
class Start(Protocol):
    """Where one parameter starts, if not where the model draws it."""

    def __call__(self, key: Array, drawn: Array, tokens: Sequence[str]) -> Array:
        """Make the start of a parameter.

        Args:
            key: () PRNG key, the seed's and the parameter's own.
            drawn: what the model draws.
            tokens: names of the V tokens.

        Returns:
            An array of the shape and dtype of `drawn`.
        """
        ...


@runtime_checkable
class Phase(Protocol):
    """Which parameters move, by which dynamics, until when.

    `jaxattn.Phase` has all of it but `train`, `steps` and `step(task, state)`, which `advance` repeats.
    A state is any pytree with `params`, `step` (), the steps taken, and `failed_at` (), the step at which the
    seed failed or -1; `jaxattn.dynamics.State` is one. A phase may also have `refines`, names of metrics of
    standard probes that it measures itself, to more digits.

    Attributes:
        name: in tables.
        train: names of the parameters that move.
        failure: what it means that a seed failed.
        dtype: precision of the state; that of the study if None.
        seeds_per_core: how many seeds a core of a CPU takes at a time; as many as its cache holds if None.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def train(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def failure(self) -> str: ...  # noqa: D102
    @property
    def dtype(self) -> str | None: ...  # noqa: D102
    @property
    def seeds_per_core(self) -> int | None: ...  # noqa: D102

    def probe_steps(self, per_decade: int) -> list[int]:
        """List the steps to measure at, ascending, 0 and the last among them."""
        ...

    def init(self, task: Any, params: Any, key: Array) -> Any:
        """Make the state that the phase starts with.

        Args:
            task: a `jaxattn.dynamics.Task`: the model, the loss and the corpora of one seed.
            params: the parameters that the phase before left.
            key: () PRNG key, for what is drawn on the way; keep it in the state.

        Returns:
            The state.
        """
        ...

    def advance(self, task: Any, state: Any, steps: int | Array) -> Any:
        """Take steps; one call with k + l steps equals two with k and l.

        Args:
            task: as in `init`.
            state: where to start.
            steps: how many, may be traced.

        Returns:
            A state of the same structure, shapes and dtypes.
        """
        ...

    def metrics(self, state: Any) -> Mapping[str, Array]:
        """Tell what the state itself knows: numbers () by name."""
        ...


@runtime_checkable
class Probe(Protocol):
    """What is measured at single steps.

    A probe may also have
        labels, what figures call its metrics, by name;
        applies(model, loss, phase) -> whether it looks at a phase;
        remember(params) -> what it keeps of the start of a phase, its `seen.memory` in `measure`;
        from_step, the first step that it speaks of.
    """

    def measure(self, seen: Any) -> Mapping[str, Array]:
        """Measure one seed.

        Args:
            seen: a `jaxattn.probes.Seen`: parameters, model, loss, corpora, phase, and what follows from
                them, each computed once for all probes.

        Returns:
            Numbers (), or vectors (m,), by names that no other probe has.
        """
        ...


@runtime_checkable
class PhaseProbe(Protocol):
    """What is measured of a whole phase when it has ended.

    Attributes:
        metrics: names of all that it measures.
    """

    @property
    def metrics(self) -> Sequence[str]: ...  # noqa: D102

    def applies(self, model: Any, loss: Any, phase: Any) -> bool:
        """Tell whether it looks at a phase."""
        ...

    def observe(self, phase: Any, state: Any) -> Array:
        """Look at the state of one seed at a probe step; any one shape."""
        ...

    def conclude(
        self, history: np.ndarray, params: Any, loaded: Loaded
    ) -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
        """Measure all seeds, on the host.

        Args:
            history: (S, k, ...) float64; what was observed of S seeds at k probe steps.
            params: the parameters at the end, with a leading axis of seeds.
            loaded: corpora, shared by the seeds or one for each.

        Returns:
            What belongs to every probe step, (S, k) each, and to the phase as a whole, (S,) each.
        """
        ...


@runtime_checkable
class Figure(Protocol):
    """A figure of a finished run, drawn on the host."""

    def __call__(self, results: Any, **settings: Any) -> Any:
        """Draw it.

        Args:
            results: a `jaxattn.Results`.
            settings: as its sweep file gives them.

        Returns:
            A matplotlib figure, which gets the function's name and the first line of its docstring; or a
            `jaxattn.results.drawn.Drawn` with words of its own.
        """
        ...
