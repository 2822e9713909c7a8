"""The model, the data and the initial parameters of a run, built again from its results folder."""

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import msgspec
import numpy as np

from jaxattn.base import DrawnData, Model
from jaxattn.base.from_function import FromFunction
from jaxattn.core import backend
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import get, names
from jaxattn.data import Splits, corpus
from jaxattn.lab.kinds import GENERATORS, MODELS, load_kind
from jaxattn.lab.results.run import Run
from jaxattn.lab.study.concepts import MODEL
from jaxattn.lab.study.groups import compile_groups
from jaxattn.lab.study.import_paths import ImportPaths
from jaxattn.lab.study.randomness import keys
from jaxattn.lab.study.reader import Reader
from jaxattn.lab.study.registry import make
from jaxattn.lab.study.seed import draw_data, initial_params
from jaxattn.lab.study.seed import seed_dataset as of_seed
from jaxattn.lab.study.setting import Cell, Hyperparameters, Setting, with_hyperparameters

Arrays = dict[str, np.ndarray]
AGAIN = "load another folder, or run the sweep again"


class _Given(ImportPaths):
    """Import resolver for configs read from a results folder; refuses to import code that is not given."""

    def __init__(self, given: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__(given=given)

    def load(self, name: str) -> Any:
        if name in self.given:
            return self.given[name]
        raise InputError(f"the study uses {name}, and loading results never imports custom code")


def built_in_model(results: Run, cell: int) -> Any:
    """Return the built-in model of a cell with its settings, or None if the model is custom."""
    path = MODELS.get(str(results.lookup(cell, "model.kind")))
    if path is None:
        return None
    target = load_kind(path)
    settings = {name: results.lookup(cell, f"model.{name}") for name in target.__struct_fields__}
    try:
        return msgspec.convert(settings, target)
    except msgspec.ValidationError as error:
        raise InputError(
            f"{results.directory}: this version of jaxattn cannot build the model: {error}; {AGAIN}"
        ) from None


def model_from_code(results: Run, cell: int, given: Any, code: Mapping[str, str | None]) -> Any:
    """Return the model of a run, built from a class, a function or an object that the user passes.

    Args:
        results: the results.
        cell: index of the cell.
        given: the model. A class or function gets the settings of the run.
        code: hashes of the custom code of the run, by import path.

    Raises:
        InputError: the settings of an object, or those that a class or function accepts, are not those of
            the run.
    """
    table = dict(results.lookup(cell, "model"))
    kind, settings = str(table.pop("kind")), {key: x for key, x in table.items() if key != "init"}
    cls = type(given)
    target = (cls.function if isinstance(given, FromFunction) else cls) if isinstance(given, Model) else given
    if isinstance(given, tuple) or not callable(target):
        raise InputError(
            f"model: expected the function or class of the run's model, {kind}, without a call, got "
            f"{cls.__name__}; the run recorded its settings"
        )
    known = MODELS.get(kind)
    if known is not None and target is not load_kind(known):
        raise InputError(f"model: the run used the built-in model {kind!r}; omit model")
    names = _Given({kind: target})
    try:
        whole = given if isinstance(given, Model) else {"kind": kind, **settings}
        made, own = make(MODEL, whole, "model", names)
    except InputError as error:
        raise InputError(f"{error}; the run recorded the model {kind} with the settings {settings}") from None
    if other := [key for key in own | settings if key != "kind" and own.get(key) != settings.get(key)]:
        raise InputError(
            f"model.{other[0]}: {own.get(other[0])!r}, but {settings.get(other[0])!r} in the run; pass only "
            "the class or function, which gets the settings of the run"
        )
    if known is None and (code.get(kind) is None or names.code_hash(kind) != code[kind]):
        warnings.warn(
            f"model: the code of {kind} is not known to be that of the run, which may have been in another "
            "file or version; check that it defines the same model",
            stacklevel=4,
        )
    return made


def dataset_of_run(results: Run, *, seed: int, cell: int) -> Splits:
    """Regenerate the data for one seed of one cell.

    Raises:
        InputError: the cell or seed is unknown; or the results were loaded from a folder, and the data come
            from files or user-defined code. In the latter case, use `Study.dataset`.
    """
    results.settings(cell)
    if seed not in (known := results.manifest["seeds"]):
        raise InputError(f"seed {seed}: not in the run; choose one of {', '.join(map(str, known[:20]))}")
    if results.study is not None:
        splits: Splits = results.study.dataset(seed, cell)
        return splits
    table = results.lookup(cell, "data")
    path = GENERATORS.get(str(table.get("kind")))
    if path is None:
        raise InputError(
            f"data.kind = {table.get('kind')!r}: these data cannot be rebuilt from a results folder, because "
            "they are defined by code or files; use jaxattn.Study.read(SWEEP).dataset(...)"
        )
    target = load_kind(path)
    settings = {name: table[name] for name in target.__struct_fields__ if name in table}
    try:
        data = msgspec.convert(settings, target)
    except msgspec.ValidationError as error:
        raise InputError(
            f"{results.directory}: this version of jaxattn cannot generate the data: {error}; "
            "run the study again"
        ) from None
    return of_seed(data, seed, str(results.manifest["dtype"]), hold=results.hold(cell)).splits


def initial_arrays(results: Run, cell: int, seed: int, trained: Arrays) -> Arrays:
    """Recompute the initial parameters of one seed of one cell, as the arrays that a run stores.

    `trained` contains the trained parameters, which determine the vocabulary size for texts. The compiled
    program is that of the run.

    Raises:
        InputError: the results were loaded from a folder, and the study needs custom code or a data file.
    """
    try:
        wanted = results.study.cells[cell] if results.study else _cell(results, cell)
        if wanted.config_hash != results.config_hash(cell):
            raise InputError("the config of this folder was written by another version of jaxattn")
        (group,) = compile_groups([wanted])
        with backend.precision(group.setting.dtype):
            data, tokens = _shapes(results, group.setting, trained)
    except InputError as error:
        reload = f"jaxattn.Study.read(SWEEP).run({str(results.directory)!r}).params(step=0)"
        raise InputError(f"step 0: {error}; use {reload}") from None

    def start(key: jax.Array, numbers: Hyperparameters) -> Any:
        return initial_params(with_hyperparameters(group.setting, numbers), data, key, tokens)

    with backend.precision(group.setting.dtype):
        numbers = {path: x[0] for path, x in group.hyperparameters([wanted]).items()}
        params = jax.jit(start)(keys(seed, group.setting.hold).start, numbers)
        return {name: np.asarray(get(params, name)) for name in names(params)}


def _cell(results: Run, cell: int) -> Cell:
    """Return a cell of the study of a loaded folder."""
    return Reader(_Given()).read(results.tables(cell), cell, results.settings(cell))


def _shapes(results: Run, setting: Setting, trained: Arrays) -> tuple[Splits, Sequence[str]]:
    if isinstance(setting.data, DrawnData):
        return jax.eval_shape(partial(draw_data, setting), jax.random.key(0)), setting.data.tokens
    if results.study is not None:
        data, _, tokens = setting.data.load()
        return data, tokens
    if setting.starts or "E" not in trained:
        raise InputError(
            "the initial parameters depend on data files, which are not read when results are loaded"
        )
    return Splits(like_parameters(trained)), ()


def like_parameters(arrays: Mapping[str, Any]) -> corpus.Corpus:
    """Return a placeholder corpus for which a built-in model has parameters with the shapes of `arrays`."""
    p, v = (np.ndim(arrays.get(name, ())) for name in "pv")
    # v has one more axis than the queries p if there are more than two classes.
    classes = arrays["v"].shape[-1] if v > p else 2
    return corpus.shapes(vocab_size=len(arrays["E"]) if "E" in arrays else 1, num_classes=classes)
