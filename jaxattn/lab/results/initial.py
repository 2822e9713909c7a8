"""Initial parameters of a run, recomputed from the study and the seed."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxattn.base import DrawnData
from jaxattn.core import backend
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import get, names
from jaxattn.data import Splits, corpus
from jaxattn.lab.results.run import Run
from jaxattn.lab.study.groups import compile_groups
from jaxattn.lab.study.import_paths import ImportPaths
from jaxattn.lab.study.randomness import keys
from jaxattn.lab.study.seed import draw_data, initial_params
from jaxattn.lab.study.setting import Cell, Hyperparameters, Reader, Setting, with_hyperparameters

Arrays = dict[str, np.ndarray]


class _NoImports(ImportPaths):
    """Import resolver for configs read from a results folder; refuses to import code."""

    def load(self, name: str) -> Any:
        raise InputError(f"the study uses {name}, and loading results never imports custom code")


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
    (entry,) = (entry for entry in results.manifest["cells"] if entry["cell"] == cell)
    return Reader(_NoImports()).read(results.tables(cell), cell, entry["settings"])


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
