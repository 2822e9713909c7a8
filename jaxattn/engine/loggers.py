"""Writers of measurements for dashboards: TensorBoard, and Weights & Biases offline."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from jaxattn.errors import InputError

Kind = Literal["tensorboard", "wandb"]
# An entry of metrics.jsonl, and the numbers of single seeds by lane and metric.
Write = Callable[[dict[str, Any], dict[str, dict[str, float]]], None]


def writer(kind: Kind, directory: Path, name: str) -> tuple[Write, Callable[[], None]]:
    """Open a writer of measurements by step: the median over the lanes of a batch, and a line for every seed.

    Args:
        kind: which one.
        directory: the results folder; files go to `tensorboard` or `wandb` in it. Nothing is sent anywhere:
            `wandb sync` uploads an offline run.
        name: of the study.

    Returns:
        A function to call with every entry and the series of its seeds, and one that closes the writer.

    Raises:
        InputError: the package is not installed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    try:
        return _tensorboard(directory) if kind == "tensorboard" else _wandb(directory, name)
    except ImportError:
        raise InputError(
            f"--log {kind}: not installed; install it with pip install 'jaxattn[{kind}]'"
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
        (f"{place}/{metric}", value)
        for place, metrics in of_phase.items()
        for metric, value in metrics.items()
        if value is not None
    ]
