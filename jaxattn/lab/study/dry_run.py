"""Dry run of a setting with abstract arrays, to validate what each component returns before compilation."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.base import Dataset, Measurement, Phase, PhaseProbe, Probe, Progress, SharedData, silent
from jaxattn.base.model import HasTokenScores, check_type, linear_in
from jaxattn.core import backend
from jaxattn.core.errors import InputError, RunError, at, from_user_code, in_user_code, remedy, shown
from jaxattn.core.pytrees import get, names, selected
from jaxattn.core.spec import Spec
from jaxattn.data.corpus import Corpus
from jaxattn.data.splits import Loaded, Splits
from jaxattn.lab.probes.standard import BEST
from jaxattn.lab.study import concepts, seed
from jaxattn.lab.study.concepts import Concept
from jaxattn.lab.study.output_checks import (
    check_examples,
    check_floats,
    check_like,
    check_scores,
    check_vocabulary,
    couples,
    is_floats,
    metric_names,
)
from jaxattn.lab.study.randomness import Keys, keys
from jaxattn.lab.study.setting import (
    Hyperparameters,
    Setting,
    SettingPath,
    key_of,
    with_hyperparameters,
)
from jaxattn.models.linearity import check_linear_scores

# Number of examples for which the functions of a model are compared.
_EXAMPLES = 64


def rehearse(
    setting: Setting,
    dtypes: Mapping[SettingPath, Any],
    files: frozenset[str],
    progress: Progress = silent,
) -> None:
    """Trace the computation for one seed, and validate the return value of each component.

    `dtypes` maps the numeric settings to their dtypes. `files` contains the
    source files of the user's code.

    Raises:
        InputError: a component returns a value of the wrong type or shape, or needs the concrete value of a
            traced setting.
        UserCodeError: custom code raised an exception, which is the cause of this error.
    """
    with backend.precision(setting.dtype):
        with from_user_code(files, "data"):
            shared = setting.data.load(progress) if isinstance(setting.data, SharedData) else None
        rehearsal = _Rehearsal(setting, shared, files)
        numbers = {
            path: jax.ShapeDtypeStruct((), jax.dtypes.canonicalize_dtype(dtype))
            for path, dtype in dtypes.items()
        }
        try:
            train = rehearsal.run(numbers)
        except RunError as error:
            if not isinstance(error.__cause__, jax.errors.JAXTypeError) or rehearsal.fails({}):
                raise
            guilty = [path for path, x in numbers.items() if rehearsal.fails({path: x})]
            keys = " and ".join(key_of(setting, path) for path in guilty)
            location = str(error).removesuffix(remedy(error.__cause__))
            raise InputError(
                f"{keys}: the value must be known at compile time, but programs are compiled for all values "
                f"({location}); annotate the setting as jaxattn.Static[float], or use jax.numpy.where"
            ) from None
        rehearsal.minibatches(train)
        rehearsal.linearity()


class _Rehearsal:
    """Dry run of a setting for one seed, with abstract arrays. Exceptions name the failing component."""

    def __init__(self, setting: Setting, shared: Loaded | None, files: frozenset[str]) -> None:
        self.setting, self.shared, self.files = setting, shared, files

    def run(self, numbers: Hyperparameters) -> Any:
        """Trace all components with traced `numbers`, and return the training data as abstract arrays."""

        def run(numbers: Hyperparameters, of_seed: Keys) -> Any:
            setting = with_hyperparameters(self.setting, numbers)
            data = self.data(setting, of_seed.data)
            tokens = self.shared.tokens if self.shared else seed.sampled_data(setting).tokens
            params = self.start(setting, data, of_seed.start, tokens)
            self.model(setting, params, data.train)
            for index in range(len(setting.phases)):
                params = self.phase(setting, index, params, data, of_seed.batches)
            return data.train

        return jax.eval_shape(run, dict(numbers), jax.eval_shape(keys, 0))

    def fails(self, numbers: Hyperparameters) -> bool:
        """Return whether tracing fails because a component needs the concrete value of a tracer."""
        try:
            self.run(numbers)
        except RunError as error:
            return isinstance(error.__cause__, jax.errors.JAXTypeError)
        return False

    def data(self, setting: Setting, key: Array) -> Splits:
        with self.at("data", concepts.DATA):
            data = self.shared.splits if self.shared else seed.draw_data(setting, key)
            if not isinstance(data, Splits):
                raise InputError(f"draw returns {shown(data)}; return jaxattn.data.Splits")
            if not isinstance(data.train, Dataset):
                raise InputError(
                    f"draw returns {shown(data.train)} as `train`; return a jaxattn.Dataset, such as a Corpus"
                )
            if setting.data.pads_vocabulary:
                check_vocabulary(data.train, setting.data.vocab_size)
            for name in ("train", "test", "validation"):
                if (held := getattr(data, name)) is not None:
                    check_examples(held, name)
        check_type(type(data.train), setting.model)
        return data

    def start(self, setting: Setting, data: Splits, key: Array, tokens: Any) -> Any:
        with self.at("model.init", concepts.MODEL):
            drawn = seed.initial_params(setting._replace(starts={}), data, key, tokens)
            if drawn is None:
                raise InputError(f"{_name(setting.model)}.init returns None; return the parameters")
            known = names(drawn)
            for name in setting.starts:
                if name not in known:
                    raise InputError(f"the model has no parameter {name!r}; choose one of {', '.join(known)}")
        for name in setting.starts:
            with self.at(f"model.init.{name}", concepts.START):
                own = setting._replace(starts={name: setting.starts[name]})
                made = seed.initial_params(own, data, key, tokens)
                check_like(get(drawn, name), get(made, name), f"{_name(setting.starts[name])} returns")
        return seed.initial_params(setting, data, key, tokens)

    def model(self, setting: Setting, params: Any, data: Dataset) -> None:
        model, n, name = setting.model, data.num_examples, _name(setting.model)
        with self.at("model", concepts.MODEL):
            outputs = model.outputs(params, data)
            if not is_floats(outputs) or outputs.shape[:1] != (n,):
                raise InputError(
                    f"{name}.outputs returns {shown(outputs)}; return a float array of shape ({n}, ...)"
                )
            if isinstance(model, HasTokenScores) and isinstance(data, Corpus):
                check_scores(model, params, data)
        with self.at("loss", concepts.LOSS):
            name, coupled = _name(setting.loss), setting.loss.coupled
            if reason := setting.loss.skip_reason(outputs, data):
                raise InputError(f"{name} is incompatible with the model and the data: {reason}")
            each = setting.loss(outputs, data.targets)
            why = "for all examples together" if coupled else "one for every example"
            if not coupled and not jnp.ndim(each):
                raise InputError(
                    f"{name} returns {shown(each)}; return floats of shape ({n},), one per example, or "
                    "subclass jaxattn.Loss and set coupled = True"
                )
            check_floats(name, each, [() if coupled else (n,)], why)

    def minibatches(self, data: Dataset) -> None:
        """Raise InputError if the loss couples sequences but a minibatch phase would evaluate it on all data.

        Such a loss must set `coupled = True`, so that it is evaluated on each minibatch.
        """
        setting = self.setting
        batched = [k for k, phase in enumerate(setting.phases) if phase.batch_size]
        cuts = setting.model.cuts_batches or setting.loss.coupled
        if not batched or cuts or not isinstance(data, Corpus):
            return
        with self.at("loss", concepts.LOSS):
            if not couples(setting.loss, data.num_examples, data.num_classes):
                return
        raise InputError(
            f"phases[{batched[0]}].batch_size: {_name(setting.loss)} couples examples, but would be "
            "evaluated on all examples instead of the batch; subclass jaxattn.Loss with "
            "coupled = True, and return one number for the batch"
        )

    def linearity(self) -> None:
        """Raise InputError if a model with linear scores has different functions for training and flows."""
        setting = self.setting
        if linear_in(setting.model) is None:
            return

        def start(of_seed: Keys) -> tuple[Splits, Any]:
            data = self.shared.splits if self.shared else seed.draw_data(setting, of_seed.data)
            tokens = self.shared.tokens if self.shared else seed.sampled_data(setting).tokens
            return data.sampled(_EXAMPLES), seed.initial_params(setting, data, of_seed.start, tokens)

        with self.at("model", concepts.MODEL):
            data, params = jax.jit(start)(keys(0))
            check_linear_scores(setting.model, params, data.train)

    def phase(self, setting: Setting, index: int, params: Any, data: Splits, key: Array) -> Any:
        phase, location = setting.phases[index], f"phases[{index}]"
        name = _name(phase)
        with at(f"{location}.train"):
            selected(params, phase.train)
        with jax.enable_x64(_is_double(setting, phase)), self.at(location, concepts.PHASE):
            setting.probes.steps_of(phase)
            carried = seed.begin_phase(setting, index, params, data, key)
            state = carried.state
            leaves = {jax.tree_util.keystr(path, simple=True) for path, _ in jax.tree.leaves_with_path(state)}
            missing = [x for x in ("params", "failed_at") if not hasattr(state, x)]
            missing += [] if "step" in leaves else ["step"]
            if missing:
                raise InputError(
                    f"{name}.init returns {shown(state)} without {missing[0]!r}; "
                    "return a state with params, step "
                    "and failed_at, like jaxattn.dynamics.State"
                )
            if type(phase).step is not Phase.step:
                task = seed.task_of(setting, data)
                check_like(state, phase.step(task, state), f"{name}.step returns")
            further = seed.advance(setting, index, carried, data, jnp.int32(1))
            check_like(carried, further, f"{name}.advance returns")
            metrics = metric_names(f"{name}.metrics", phase.metrics(state), 0)
        self.probes(setting, index, carried, data, metrics)
        return state.params

    def probes(
        self, setting: Setting, index: int, carried: Any, data: Splits, metrics: Sequence[str]
    ) -> None:
        phase, task = setting.phases[index], seed.task_of(setting, data)
        context = seed.probe_context(setting, index, carried.state.params, data)
        owner = dict.fromkeys(BEST, "the study") | dict.fromkeys(metrics, f"phase {phase.name}")
        own = {id(probe): f"probes.own[{k}]" for k, probe in enumerate(setting.probes.own)}
        every: list[Probe | PhaseProbe] = [*setting.probes.at_steps, *setting.probes.of_phases]
        for number, probe in enumerate(every):
            location = own.get(id(probe), "probes")
            with self.at(location, _requirement(probe)):
                if probe.skip_reason(task, phase):
                    continue
                if isinstance(probe, PhaseProbe):
                    with jax.enable_x64(_is_double(setting, phase)):
                        seen = probe.observe(phase, carried.state)
                    if not isinstance(seen, Array):
                        raise InputError(
                            f"{_name(probe)}.observe returns {shown(seen)}; return one array of any shape"
                        )
                    found = list(probe.metrics)
                else:
                    measured = probe.measure(context.with_memory(carried.memory.get(number)))
                    refined = phase.refines if location == "probes" else ()
                    found = [x for x in metric_names(_name(probe), measured, 1) if x not in refined]
                for name in found:
                    if owner.setdefault(name, location) != location:
                        raise InputError(_same_name(name, owner[name], location))

    @contextmanager
    def at(self, location: str, concept: Concept[Any] | str) -> Iterator[None]:
        """Inside the `with` block, convert exceptions to InputError or UserCodeError with a location."""
        try:
            with at(location):
                yield
        except (InputError, RunError):
            raise
        except Exception as error:
            if found := in_user_code(error, self.files, location):
                raise found from error
            reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
            wanted = concept if isinstance(concept, str) else f"{concept.name} must be {concept.requirement}"
            raise InputError(f"{location}: {reason}; {wanted}") from error


def _same_name(metric: str, owner: str, location: str) -> str:
    """Return the error message for a metric with two owners; `location` is that of the second, a probe."""
    if location == "probes":
        return (
            f"{metric!r} is also a metric of {owner}; choose another name for it, or declare "
            f"refines = [{metric!r}] to replace the standard metric"
        )
    by = "a standard probe" if owner == "probes" else owner
    return f"{metric!r} is also a metric of {by}; choose another name"


def _is_double(setting: Setting, phase: Phase) -> bool:
    return "float64" in (setting.dtype, phase.dtype)


def _requirement(probe: Measurement) -> Concept[Any] | str:
    if probe.kind or not type(probe).__module__.startswith("jaxattn."):
        return concepts.PROBE
    return f"the built-in probe {type(probe).__name__} does not support this model"


def _name(thing: Spec) -> str:
    return thing.kind or type(thing).__name__
