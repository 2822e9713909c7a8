"""Measurements of a whole phase after it ends: `PhaseProbe.conclude` for the runs of a batch."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jaxattn.base.probe import check_conclusions
from jaxattn.data.splits import Loaded
from jaxattn.lab.study import seed
from jaxattn.lab.study.setting import Hyperparameters, Setting, with_hyperparameters

_Metrics = dict[str, np.ndarray]


def conclude(
    setting: Setting,
    index: int,
    history: Mapping[str, np.ndarray],
    params: Any,
    loaded: Loaded,
    hyperparameters: Hyperparameters,
) -> Iterator[tuple[_Metrics, _Metrics]]:
    """Yield the metrics of each phase probe that applies to a phase.

    Probes and the model have numeric settings, in which runs may differ. Each call of a probe gets the runs
    with equal ones.

    Args:
        setting: setting of the compile group.
        index: index of the phase.
        history: observations of each probe, (L, k, ...) for L runs and k probe steps.
        params: the final parameters, with a leading axis of runs.
        loaded: the data, either shared by all runs or with a leading axis of runs.
        hyperparameters: the numeric settings, (L,) each.

    Returns:
        For each probe, the metrics at every probe step, (L, k), and those of the whole phase, (L,). A metric
        that is missing for some runs is NaN.
    """
    parts = list(_parts(setting, hyperparameters))
    for number, seen in enumerate(history.values()):
        every: tuple[_Metrics, _Metrics] = {}, {}
        for own, lanes in parts:
            probe = seed.phase_probes(own, index, loaded.splits)[number]
            own_params, data = (params, loaded) if lanes is None else _take(params, loaded, lanes)
            of_seen = seen if lanes is None else seen[lanes]
            found = probe.conclude(of_seen, own_params, own.model, data)
            for whole, part in zip(every, check_conclusions(probe, found, *of_seen.shape[:2]), strict=True):
                for metric, x in part.items():
                    empty = np.full((len(seen), *x.shape[1:]), np.nan)
                    whole.setdefault(metric, empty)[slice(None) if lanes is None else lanes] = x
        yield every


def _parts(setting: Setting, numbers: Hyperparameters) -> Iterator[tuple[Setting, np.ndarray | None]]:
    """Yield the settings that differ in numbers of the model or the probes, with their runs; None is all."""
    own = {path: np.asarray(x).tolist() for path, x in numbers.items() if path[0] in ("model", "probes")}
    lanes: dict[tuple[Any, ...], list[int]] = {}
    for lane, values in enumerate(zip(*own.values(), strict=True)):
        lanes.setdefault(values, []).append(lane)
    for values, runs in (lanes or {(): []}).items():
        changed = with_hyperparameters(setting, dict(zip(own, values, strict=True)))
        yield changed, None if len(lanes) < 2 else np.array(runs)


def _take(params: Any, loaded: Loaded, lanes: np.ndarray) -> tuple[Any, Loaded]:
    def take(tree: Any) -> Any:
        return jax.tree.map(lambda x: x[lanes], tree)

    return take(params), loaded if loaded.shared else loaded._replace(splits=take(loaded.splits))
