"""Loggers for measurements during a run: metrics.jsonl, TensorBoard, and offline Weights & Biases."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import jax

from jaxattn.core.errors import InputError
from jaxattn.lab.engine.monitor import Write

LoggerKind = Literal["tensorboard", "wandb"]


@contextmanager
def open_loggers(
    directory: Path,
    log: Callable[[dict[str, Any]], None],
    name: str,
    kinds: Sequence[LoggerKind],
    profile: bool,
) -> Iterator[Write]:
    """Open the loggers, and start a JAX trace if `profile` is True.

    Args:
        directory: the results folder.
        log: function that writes an entry to metrics.jsonl of the current batch.
        name: name of the study.
        kinds: dashboards.
        profile: True to write a JAX trace to the folder.

    Yields:
        A function to call with each log entry and its per-seed series. Entries without measurements are
        written only to metrics.jsonl.

    Raises:
        InputError: the package required for a dashboard is not installed.
    """
    with ExitStack() as stack:
        if profile:
            stack.enter_context(jax.profiler.trace(str(directory / "profile")))
        boards = []
        for kind in kinds:
            board, close = open_dashboard(kind, directory, name)
            boards.append(board)
            stack.callback(close)

        def write(entry: dict[str, Any], series: dict[str, dict[str, float]]) -> None:
            log(entry)
            for board in boards if entry["metrics"] else ():
                board(entry, series)

        yield write


def open_dashboard(kind: LoggerKind, directory: Path, name: str) -> tuple[Write, Callable[[], None]]:
    """Open a dashboard that shows the median over a batch's vmapped runs, and one curve per seed.

    Files are written to `tensorboard` or `wandb` in the results folder. Nothing is uploaded; `wandb sync`
    uploads an offline run.

    Returns:
        A function to call with each log entry and its per-seed series, and a function that closes the
        dashboard.

    Raises:
        InputError: the package is not installed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    try:
        return _tensorboard(directory) if kind == "tensorboard" else _wandb(directory, name)
    except ImportError:
        raise InputError(
            f"--log {kind}: the package is not installed; run pip install 'jaxattn[{kind}]'"
        ) from None


def _tensorboard(directory: Path) -> tuple[Write, Callable[[], None]]:
    from tensorboardX import SummaryWriter

    board = SummaryWriter(str(directory / "tensorboard"))

    def write(entry: dict[str, Any], series: dict[str, dict[str, float]]) -> None:
        for tag, value in _scalars(entry, series):
            board.add_scalar(tag, value, entry["step"], walltime=entry["time"])

    return write, board.close


def _wandb(directory: Path, name: str) -> tuple[Write, Callable[[], None]]:
    import wandb

    run = wandb.init(
        project="jaxattn", name=name, dir=str(directory), mode="offline", settings=wandb.Settings(silent=True)
    )
    run.define_metric("*", step_metric="phase_step")

    def write(entry: dict[str, Any], series: dict[str, dict[str, float]]) -> None:
        run.log(dict(_scalars(entry, series)) | {"phase_step": entry["step"]})

    return write, run.finish


def _scalars(entry: dict[str, Any], series: dict[str, dict[str, float]]) -> list[tuple[str, float]]:
    of_phase = {f"{entry['batch']}/{entry['phase']}": entry["metrics"]}
    of_phase |= {f"seeds/{lane}/{entry['phase']}": metrics for lane, metrics in series.items()}
    return [
        (f"{location}/{metric}", value)
        for location, metrics in of_phase.items()
        for metric, value in metrics.items()
        if value is not None
    ]
