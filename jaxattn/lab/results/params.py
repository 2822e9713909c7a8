"""Parameters of a run at the start and at the end of its phases."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from jaxattn.base import Dataset, Model
from jaxattn.base.model import ModelFromFunction, Params
from jaxattn.core import backend
from jaxattn.core.errors import InputError
from jaxattn.core.settings import PositiveInt
from jaxattn.lab.results.labels import ranges_text
from jaxattn.lab.results.rebuilt import (
    AGAIN,
    Arrays,
    built_in_model,
    dataset_of_run,
    initial_arrays,
    like_parameters,
    model_from_code,
)
from jaxattn.lab.results.run import Run
from jaxattn.lab.storage import batch_record, checkpoints, copies, memo
from jaxattn.lab.storage.batch_record import BatchRecord
from jaxattn.lab.storage.files import Damaged, memory
from jaxattn.lab.storage.folder import fetch_batch
from jaxattn.lab.storage.study_file import damage_as_input_error, run_again
from jaxattn.lab.study.randomness import keys
from jaxattn.models import span
from jaxattn.models.adapters import Adapted, nested


def params_of(
    results: Run,
    *,
    cell: int,
    seed: int | None,
    phase: str | None,
    step: int | None = None,
    model: object = None,
) -> Params:
    """Return the parameters of one seed of one cell, before or after a phase; see `load.Results.params`.

    Parameters in span coordinates are converted to vectors in R^d, with a basis that is regenerated from the
    seed. For d = ∞, they remain in span coordinates. Vocabulary padding is removed.
    """
    results.settings(cell)
    if step not in (None, 0):
        raise InputError(f"step {step}: not stored; use step 0, or omit step for the end of the phase")
    seed = results.manifest["seeds"][0] if seed is None else seed
    with copies.naming():
        state, code = _restore(results, cell, seed)
    phases = list(state)
    if phase not in (None, *phases):
        raise InputError(f"phase {phase!r}: the checkpoint contains only {', '.join(phases)}")
    if step == 0:
        until = phases.index(phase) if phase else 0
    else:
        until = phases.index(phase) + 1 if phase else len(phases)
    # A phase stores the parameters that it trains.
    arrays = {name: x for own in phases[:until] for name, x in state[own].items()}
    if until == 0:
        trained = {name: x for own in state.values() for name, x in own.items()}
        arrays = initial_arrays(results, cell, seed, trained)
    try:
        vocab_size = msgspec.convert(results.lookup(cell, "data.vocab_size"), PositiveInt)
    except (InputError, msgspec.ValidationError):
        vocab_size = None  # texts determine V, which is not padded
    of_run = built_in_model(results, cell) or (results.study and results.study.cells[cell].setting.model)
    # Without x64, JAX would silently convert float64 to float32.
    with backend.pinned(), jax.enable_x64(True):
        arrays = _without_padding(_in_full_space(results, cell, seed, arrays), vocab_size, of_run)
        found = {name: jnp.asarray(x) for name, x in arrays.items()}
        if model is not None:
            of_run = model_from_code(results, cell, model, code)
        if of_run is None:
            return nested(found)
        built = of_run.built() if isinstance(of_run, ModelFromFunction) else of_run
        if isinstance(built, Adapted):
            return built.rebuild(found)
        return _as_model_params(found, built, _example_data(results, cell, seed, found))


def _restore(results: Run, cell: int, seed: int) -> tuple[dict[str, Arrays], Mapping[str, str | None]]:
    """Return the stored parameters of a run, by phase in their order, and the hashes of its custom code."""
    directory = Path(os.path.abspath(results.directory))
    names = results.manifest.get("batches", [])
    if not names:
        raise InputError(
            f"{results.directory}: no checkpoint for cell {cell}; load the folder of the run that "
            "contains the cell"
        )
    if seed not in results.manifest["seeds"]:
        seeds = ranges_text(list(results.manifest["seeds"]))
        raise InputError(f"seed {seed}: {results.directory} has only seeds {seeds} for cell {cell}")
    entry = results.entry(cell)
    older = [key for key, seeds in entry["older"].items() if seed in seeds]
    run = (older or [entry["key"]])[0], seed
    with damage_as_input_error(directory):
        for name in names:
            folder = directory / memo.RUNS / name
            record = batch_record.read_record(folder, directory)
            if run in record.identities:
                fetch_batch(results.directory, name)
                state, place = _parameters(folder, record, directory), record.identities.index(run)
                order = _in_order(results, cell, list(state))
                own = {phase: {name: x[place] for name, x in state[phase].items()} for phase in order}
                return own, record.origin.code
    raise InputError(f"{directory}: seed {seed} of cell {cell} is not finished; {run_again(directory)}")


def _parameters(folder: Path, record: BatchRecord, directory: Path) -> dict[str, Arrays]:
    assert record.checkpoint is not None
    location = folder / record.checkpoint_name
    try:
        state = checkpoints.restore(location, record.checkpoint, directory)
    except Damaged as error:
        # A run does not read large arrays of finished batches.
        raise Damaged(f"{error}; delete {location}") from None
    if record.resumable and isinstance(state, dict):
        state = state.get("state", {}).get("kept")
    phases = list(state.values()) if isinstance(state, dict) else [None]
    runs = len(record.runs)
    if not all(
        isinstance(of, dict) and all(np.shape(x)[:1] >= (runs,) for x in of.values()) for of in phases
    ):
        raise InputError(f"{location}: does not contain the parameters of {runs} runs; {AGAIN}")
    return dict(state)


def _in_order(results: Run, cell: int, phases: list[str]) -> list[str]:
    recorded = [str(name) for name in results.records["phase"][results.records["cell"] == cell].unique()]
    planned = [entry["name"] for entry in results.lookup(cell, "phases")]
    known = recorded if set(phases) <= set(recorded) else planned
    return sorted(phases, key=lambda name: known.index(name) if name in known else len(known))


def _in_full_space(results: Run, cell: int, seed: int, arrays: Arrays) -> Arrays:
    model = built_in_model(results, cell)
    if model is None or model.in_span() is model or model.dim in ("inf", arrays["E"].shape[1]):
        return arrays
    E, v = arrays["E"], arrays["v"]
    if model.dim * E.shape[1] * E.itemsize > memory() // 4:
        raise InputError(
            f"{results.directory}: vectors with d = {model.dim:,} do not fit in memory; use a larger machine"
        )
    classes = 2 if v.ndim == 1 else v.shape[1]
    sizes: dict[str, Any] = {"vocab_size": len(E), "num_classes": classes, "dtype": E.dtype}
    basis = np.asarray(span.basis(keys(seed, results.hold(cell)).start, dim=model.dim, **sizes))
    return {name: x @ basis.T if name in model.token_rows else basis @ x for name, x in arrays.items()}


def _without_padding(arrays: Arrays, vocab_size: int | None, model: Any) -> Arrays:
    if vocab_size is None or "E" not in arrays or len(arrays["E"]) <= vocab_size:
        return arrays
    if model is not None:
        over_tokens = list(model.token_rows)
    else:
        padded, dim = arrays["E"].shape
        # The folder does not contain `token_rows` of a custom model. If V = d, the shape does not show which
        # axis is the vocabulary, and only E is known to have one row per token.
        over_tokens = [
            name
            for name, x in arrays.items()
            if x.ndim and len(x) == padded and (name == "E" or padded != dim)
        ]
    return arrays | {name: arrays[name][:vocab_size] for name in over_tokens}


def _example_data(results: Run, cell: int, seed: int, arrays: Mapping[str, Any]) -> Dataset:
    if built_in_model(results, cell) is None:
        # Data of files or custom code can be generated only in the session of the run.
        with suppress(InputError):
            return dataset_of_run(results, seed=seed, cell=cell).train
    return like_parameters(arrays)


def _as_model_params(arrays: Mapping[str, Any], model: Any, like: Dataset) -> Any:
    if isinstance(model, Model) and not isinstance(like, model.takes):
        raise InputError(
            f"model: cannot be rebuilt from a results folder alone, because it needs data of "
            f"type {model.takes.__name__}. Use study.run(...).params(...), or omit model"
        )
    dtype = next((x.dtype for x in arrays.values() if np.issubdtype(x.dtype, np.floating)), np.float32)
    params = jax.eval_shape(lambda key: model.init(key, like, dtype=dtype), jax.random.key(0))
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    wanted = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
    shapes = ({name: x.shape for name, x in tree.items()} for tree in (arrays, wanted))
    held, expected = (dict(sorted(each.items())) for each in shapes)
    if held != expected:
        raise InputError(
            f"model: has parameters {expected}, but the run stored {held}; pass the model used in the run"
        )
    return jax.tree_util.tree_unflatten(structure, [arrays[name] for name in wanted])
