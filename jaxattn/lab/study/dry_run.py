"""Dry run of a setting on abstract arrays, which checks what its parts return before compilation."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxattn.base import Dataset, Measurement, Model, Phase, Progress, SharedData, silent
from jaxattn.core import backend
from jaxattn.core.errors import InputError, RunError, at, from_user_code, in_user_code, remedy, shown
from jaxattn.core.pytrees import get, names
from jaxattn.core.settings import Spec
from jaxattn.data.corpus import Corpus, class_labels
from jaxattn.data.sequences import Sequences
from jaxattn.data.splits import Loaded, Splits
from jaxattn.lab.probes.standard import BEST
from jaxattn.lab.study import registry, seed
from jaxattn.lab.study.registry import Concept
from jaxattn.lab.study.setting import (
    Hyperparameters,
    Path,
    Setting,
    check_kind,
    key_of,
    with_hyperparameters,
)
from jaxattn.losses import PerSequence

NOT_REAL = "records are real; return its real and imaginary parts, or its absolute value"


def rehearse(
    setting: Setting,
    varying: Mapping[Path, Any],
    files: frozenset[str],
    progress: Progress = silent,
) -> None:
    """Trace the run of one seed, and check the return value of every part.

    Args:
        setting: common setting of the cells of a program.
        varying: dtypes of the traced numbers, which differ between the vmapped runs of the program.
        files: source files of the user's code.
        progress: progress callback for reading texts.

    Raises:
        InputError: a part returns a value of the wrong type or shape, or needs the value of a traced number.
            The message gives the place and the remedy.
        UserCodeError: custom code raised; its cause is the original exception.
    """
    with backend.precision(setting.dtype):
        with from_user_code(files, "data"):
            shared = setting.data.load(progress) if isinstance(setting.data, SharedData) else None
        rehearsal = _Rehearsal(setting, shared, files)
        numbers = {path: jax.ShapeDtypeStruct((), dtype) for path, dtype in varying.items()}
        try:
            train = rehearsal.run(numbers)
        except RunError as error:
            if not isinstance(error.__cause__, jax.errors.JAXTypeError) or rehearsal.fails({}):
                raise
            guilty = [path for path, x in numbers.items() if rehearsal.fails({path: x})]
            keys = " and ".join(key_of(setting, path) for path in guilty)
            place = str(error).removesuffix(remedy(error.__cause__))
            raise InputError(
                f"{keys}: cells that differ in it share a program, but {place} needs its value; annotate it "
                "as jaxattn.Static[float], or use jax.numpy.where"
            ) from None
        rehearsal.minibatches(train)


class _Rehearsal:
    """Trace of one seed on abstract arrays; exceptions get the place of the part that raised."""

    def __init__(self, setting: Setting, shared: Loaded | None, files: frozenset[str]) -> None:
        self.setting, self.shared, self.files = setting, shared, files

    def run(self, numbers: Hyperparameters) -> Dataset:
        """Trace all parts with traced `numbers`; return the shapes of the training data."""
        keys = jax.eval_shape(seed.keys, 0)

        def run(numbers: Hyperparameters, keys: tuple[Array, Array]) -> Dataset:
            setting = with_hyperparameters(self.setting, numbers)
            data = self.data(setting, keys[0])
            tokens = self.shared.tokens if self.shared else seed.drawn(setting).tokens
            params = self.start(setting, data, keys[1], tokens)
            self.model(setting, params, data.train)
            for index in range(len(setting.phases)):
                params = self.phase(setting, index, params, data, keys[1])
            train: Dataset = data.train
            return train

        shapes: Dataset = jax.eval_shape(run, dict(numbers), keys)
        return shapes

    def fails(self, numbers: Hyperparameters) -> bool:
        """Return True if code needs the value of one of these numbers, or of an array, while it is traced."""
        try:
            self.run(numbers)
        except RunError as error:
            return isinstance(error.__cause__, jax.errors.JAXTypeError)
        return False

    def data(self, setting: Setting, key: Array) -> Splits:
        with self.at("data", registry.DATA):
            data = self.shared.splits if self.shared else seed.draw(setting, key)
            if not isinstance(data, Splits):
                raise InputError(f"draw returns {shown(data)}; return jaxattn.data.Splits")
            if not isinstance(data.train, Dataset):
                raise InputError(
                    f"draw returns {shown(data.train)} as train; return a jaxattn.Dataset, such as a Corpus"
                )
            if setting.data.pads_vocabulary:
                _check_vocabulary(data.train, setting.data.vocab_size)
            for name in ("train", "test", "validation"):
                if (held := getattr(data, name)) is not None:
                    _check_examples(held, name)
        check_kind(type(data.train), setting.model)
        return data

    def start(self, setting: Setting, data: Splits, key: Array, tokens: Any) -> Any:
        with self.at("model.init", registry.MODEL):
            drawn = seed.start(setting._replace(starts={}), data, key, tokens)
            known = names(drawn)
            for name in setting.starts:
                if name not in known:
                    raise InputError(f"the model has no parameter {name!r}; it has {', '.join(known)}")
        for name in setting.starts:
            with self.at(f"model.init.{name}", registry.START):
                own = setting._replace(starts={name: setting.starts[name]})
                made = seed.start(own, data, key, tokens)
                _same(get(drawn, name), get(made, name), f"{_name(setting.starts[name])} returns")
        return seed.start(setting, data, key, tokens)

    def model(self, setting: Setting, params: Any, data: Dataset) -> None:
        model, n, name = setting.model, data.num_examples, _name(setting.model)
        with self.at("model", registry.MODEL):
            outputs = model.outputs(params, data)
            if not _is_floats(outputs) or outputs.shape[:1] != (n,):
                raise InputError(
                    f"{name}.outputs returns {shown(outputs)}; return ({n}, ...) floats, for {n} examples"
                )
            if model.attends_to_tokens and not model.has_scores:
                raise InputError(
                    f"{name} sets attends_to_tokens, but has no scores; write scores_and_values(params), or "
                    "remove attends_to_tokens"
                )
            if model.has_scores and isinstance(data, Corpus):
                _check_scores(model, params, data)
        with self.at("loss", registry.LOSS):
            name, coupled = _name(setting.loss), setting.loss.coupled
            if reason := setting.loss.skip_reason(outputs, data):
                raise InputError(f"{name} does not fit the model and the data: {reason}")
            each = setting.loss(outputs, data.targets)
            why = "for all examples together" if coupled else "one for every example"
            if not coupled and not jnp.ndim(each):
                raise InputError(
                    f"{name} returns {shown(each)}; return ({n},) floats, one for every example, or derive "
                    "a class from jaxattn.Loss with coupled = True"
                )
            _wants(name, each, {() if coupled else (n,)}, why)

    def minibatches(self, data: Dataset) -> None:
        """Raise InputError if a loss couples sequences and a minibatch step would pass it all of them."""
        setting = self.setting
        batched = [k for k, phase in enumerate(setting.phases) if phase.batch_size]
        cuts = setting.model.cuts_batches or setting.loss.coupled
        if not batched or cuts or not isinstance(data, Corpus):
            return
        with self.at("loss", registry.LOSS):
            couples = _couples(setting.loss, data.num_examples, data.num_classes)
        if couples:
            raise InputError(
                f"phases[{batched[0]}].batch_size: {_name(setting.loss)} couples sequences, but it would get "
                "all sequences and not only those of the batch; derive a class from jaxattn.Loss with "
                "coupled = True that returns one number for the batch"
            )

    def phase(self, setting: Setting, index: int, params: Any, data: Splits, key: Array) -> Any:
        phase, place = setting.phases[index], f"phases[{index}]"
        name, known = _name(phase), names(params)
        for parameter in phase.train:
            if parameter not in known:
                raise InputError(f"{place}.train: {parameter!r} is not one of {', '.join(known)}")
            if not jax.tree_util.treedef_is_leaf(jax.tree.structure(x := get(params, parameter))):
                raise InputError(
                    f"{place}.train: {parameter!r} is a {shown(x)}, not an array; return its arrays from "
                    "init as separate parameters"
                )
            if not jnp.issubdtype(x.dtype, jnp.floating):
                raise InputError(f"{place}.train: {parameter!r} is {shown(x)}, not a float")
        with jax.enable_x64(_is_double(setting, phase)), self.at(place, registry.PHASE):
            setting.probes.steps_of(phase)
            carried = seed.begin(setting, index, params, data, key)
            state = carried.state
            missing = [x for x in ("params", "step", "failed_at") if not hasattr(state, x)]
            if missing:
                raise InputError(
                    f"{name}.init returns {shown(state)} without {missing[0]!r}; a state has params, step "
                    "and failed_at, as jaxattn.dynamics.State"
                )
            if type(phase).step is not Phase.step:
                task = seed.task_of(setting, data)
                _same(state, phase.step(task, state), f"{name}.step returns")
            further = seed.advance(setting, index, carried, data, jnp.int32(1))
            _same(carried, further, f"{name}.advance returns")
            metrics = _columns(f"{name}.metrics", phase.metrics(state), 0)
        self.probes(setting, index, carried, data, metrics)
        return state.params

    def probes(
        self, setting: Setting, index: int, carried: Any, data: Splits, metrics: Sequence[str]
    ) -> None:
        every, own = setting.probes.at_steps, setting.probes.own
        context = seed.probe_context(setting, index, carried.state.params, data)
        phase = setting.phases[index]
        owner = dict.fromkeys(BEST, "the study") | dict.fromkeys(metrics, f"phase {phase.name}")

        def place(probe: Measurement) -> str:
            found = [k for k, x in enumerate(own) if x is probe]
            return f"probes.own[{found[0]}]" if found else "probes"

        task = seed.task_of(setting, data)

        def applies(probe: Measurement) -> bool:
            with self.at(place(probe), _wanted(probe)):
                return not probe.skip_reason(task, phase)

        for number, probe in enumerate(every):
            if not applies(probe):
                continue
            with self.at(place(probe), _wanted(probe)):
                measured = probe.measure(context.with_memory(carried.memory.get(number)))
                names = _columns(_name(probe), measured, 1)
                standard = place(probe) == "probes"
                _free((x for x in names if not (standard and x in phase.refines)), owner, place(probe))
        for whole in filter(applies, setting.probes.of_phases):
            with jax.enable_x64(_is_double(setting, phase)), self.at(place(whole), _wanted(whole)):
                seen = whole.observe(phase, carried.state)
                if not isinstance(seen, Array):
                    raise InputError(
                        f"{_name(whole)}.observe returns {shown(seen)}; return one array of any shape"
                    )
                _free(whole.metrics, owner, place(whole))

    @contextmanager
    def at(self, place: str, concept: Concept[Any] | str) -> Iterator[None]:
        """Add the place to exceptions, and attribute them to custom code or to the package."""
        try:
            with at(place):
                yield
        except (InputError, RunError):
            raise
        except Exception as error:
            if found := in_user_code(error, self.files, place):
                raise found from error
            reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
            wanted = concept if isinstance(concept, str) else f"{concept.name} must be {concept.wants}"
            raise InputError(f"{place}: {reason}; {wanted}") from error


def _couples(loss: PerSequence, sequences: int, classes: int) -> bool:
    """Return True if the loss of a sequence changes when other sequences are replaced, on random data."""

    def moves(n: int) -> bool:
        rng = np.random.default_rng(0)
        outputs = 2 * rng.standard_normal((2, n) if classes == 2 else (2, n, classes))
        labels = class_labels(rng.integers(0, classes, (2, n)), classes)
        compute = jax.jit(lambda f, y: loss(f.astype(jnp.result_type(float)), y.astype(jnp.int32)))
        before, place = np.asarray(compute(outputs[0], labels[0])), np.arange(n)
        for others in (place % 2 == 0, place % 2 == 1, place < n // 2, place >= n // 2):
            mixed = [
                np.where(others.reshape(-1, *(1,) * (x.ndim - 2)), x[1], x[0]) for x in (outputs, labels)
            ]
            after = np.asarray(compute(*mixed))
            # Subtracting the largest logit cancels only up to rounding.
            same = np.isclose(before, after, rtol=1e-4, atol=1e-5, equal_nan=True)
            if not same[~others].all():
                return True
        return False

    try:
        return moves(8)
    except Exception:  # the loss may require the number of examples
        return moves(sequences)


def _check_vocabulary(data: Dataset, vocab_size: int | None) -> None:
    found = data.vocab_size if isinstance(data, Corpus | Sequences) else None
    if found != vocab_size:
        raise InputError(
            f"vocab_size: {vocab_size}, but the sampled data have V = {found}; return data of vocab_size "
            "tokens, because the vocabulary is padded"
        )


def _check_examples(data: Dataset, name: str) -> None:
    with at(name):
        data.check_shapes()
        size = min(2, data.num_examples)
        taken = data.take(jnp.arange(size))
        # Arrays of bags have one row per entry, not per example.
        pairs = [("targets", data.targets, taken.targets)]
        if not isinstance(data, Corpus):
            structures: list[Any] = [jax.tree.structure(held) for held in (data, taken)]
            if structures[0] != structures[1]:
                raise InputError(
                    f"take returns a {shown(taken)} of another structure; return the same type of data"
                )
            pairs = [(field, x, y) for (field, x), (_, y) in zip(data.arrays(), taken.arrays(), strict=True)]
        for field, x, y in pairs:
            if (y.shape, y.dtype) != ((size, *x.shape[1:]), x.dtype):
                raise InputError(
                    f"take returns {shown(y)} for {field}, {shown(x)}, with {size} examples; keep all axes "
                    "except the first"
                )


def _check_scores(model: Model[Any], params: Any, corpus: Corpus) -> None:
    name, vocab, classes = f"{_name(model)}.scores_and_values", corpus.vocab_size, corpus.num_classes
    columns = () if classes == 2 else (classes,)
    found: Any = model.scores_and_values(params)
    if not (isinstance(found, tuple) and len(found) == 2):
        raise InputError(f"{name} returns {shown(found)}; return scores and values")
    _wants(name, found[0], {(vocab,)}, "the score of every token")
    _wants(name, found[1], {(vocab, *columns), (vocab, 1)}, "the values of every token")


def _is_floats(value: Any) -> bool:
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating)


def _wants(name: str, value: Any, shapes: set[tuple[int, ...]], why: str) -> None:
    if not _is_floats(value) or value.shape not in shapes:
        raise InputError(f"{name} returns {shown(value)}; return {min(shapes, key=len)} floats, {why}")


def _same(wanted: Any, found: Any, what: str) -> None:
    flat = [jax.tree_util.tree_flatten_with_path(tree)[0] for tree in (wanted, found)]
    structures: list[Any] = [jax.tree.structure(tree) for tree in (wanted, found)]
    if structures[0] != structures[1]:
        raise InputError(f"{what} a {shown(found)}, whose structure differs from its input {shown(wanted)}")
    for (path, x), (_, y) in zip(*flat, strict=True):
        if (jnp.shape(x), jnp.result_type(x)) != (jnp.shape(y), jnp.result_type(y)):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise InputError(
                f"{what} {shown(y)}{f' for {name}' if name else ''}; return {shown(x)}, like its input"
            )


def _columns(what: str, metrics: Any, axes: int) -> list[str]:
    if not isinstance(metrics, dict):
        raise InputError(f"{what} returns {shown(metrics)}; return a dictionary of numbers by name")
    names = []
    for name, value in metrics.items():
        number = isinstance(value, int | float | complex | Array) and jnp.ndim(value) <= axes
        if number and jnp.issubdtype(jnp.result_type(value), jnp.complexfloating):
            raise InputError(f"{what} returns {shown(value)} for {name!r}; {NOT_REAL}")
        if not (isinstance(name, str) and number):
            kinds = "a number, or numbers (m,)" if axes else "a number"
            raise InputError(f"{what} returns {shown(value)} for {name!r}; return {kinds}")
        names += [name, *(f"{name}_{k:02d}" for k in range(len(value) if jnp.ndim(value) else 0))]
    return names


def _free(names: Iterable[str], owner: dict[str, str], place: str) -> None:
    for name in names:
        if owner.get(name, place) != place:
            by = owner[name] if owner[name] != "probes" else "a standard probe"
            raise InputError(f"{name!r} is already measured by {by}; choose another name")
        owner[name] = place


def _is_double(setting: Setting, phase: Phase) -> bool:
    return "float64" in (setting.dtype, phase.dtype)


def _wanted(probe: Measurement) -> Concept[Any] | str:
    """Return the requirement that an exception of a probe violates, for a custom or a built-in probe."""
    if probe.kind or not type(probe).__module__.startswith("jaxattn."):
        return registry.PROBE
    return f"the built-in probe {type(probe).__name__} does not support this model"


def _name(thing: Spec) -> str:
    return thing.kind or type(thing).__name__


def _check_finite(data: Dataset) -> None:
    for name, x in data.arrays():
        if _is_floats(x) and not (finite := np.isfinite(np.asarray(x))).all():
            place = tuple(int(k) for k in np.argwhere(~finite)[0])
            raise InputError(
                f"{name} holds {float(np.asarray(x)[place])} at {place}; remove that example, or replace it"
            )


def check_data(loaded: Loaded) -> None:
    """Check the values of data on the host.

    Raises:
        InputError: a number is not finite, or `Dataset.check` raises.
    """
    for name in ("train", "test", "validation"):
        data = getattr(loaded.splits, name)
        if data is None:
            continue
        with at(f"data: {name}"):
            _check_finite(data)
            if loaded.shared or isinstance(data, Corpus):
                data.check()
            else:
                held = jax.device_get(data)
                for number in range(len(held.targets)):
                    jax.tree.map(lambda x, number=number: x[number], held).check()
