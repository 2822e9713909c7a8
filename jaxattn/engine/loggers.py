"""Writers of measurements for dashboards: TensorBoard, and Weights & Biases offline."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from jaxattn.errors import InputError

Kind = Literal["tensorboard", "wandb"]
Write = Callable[[dict[str, Any]], None]


def writer(kind: Kind, directory: Path, name: str) -> tuple[Write, Callable[[], None]]:
    """Open a writer of the entries of metrics.jsonl: the median over the lanes of a batch, by step.

    Args:
        kind: which one.
        directory: the results folder; files go to `tensorboard` or `wandb` in it. Nothing is sent anywhere:
            `wandb sync` uploads an offline run.
        name: of the study.

    Returns:
        A function to call with every entry, and one that closes the writer.

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

    def write(entry: dict[str, Any]) -> None:
        for tag, value in _scalars(entry):
            board.add_scalar(tag, value, entry["step"], walltime=entry["time"])

    return write, board.close


def _wandb(directory: Path, name: str) -> tuple[Write, Callable[[], None]]:
    import wandb

    run = wandb.init(
        project="jaxattn", name=name, dir=str(directory), mode="offline", settings=wandb.Settings(silent=True)
    )
    run.define_metric("*", step_metric="phase_step")

    def write(entry: dict[str, Any]) -> None:
        run.log(dict(_scalars(entry)) | {"phase_step": entry["step"]})

    return write, run.finish


def _scalars(entry: dict[str, Any]) -> list[tuple[str, float]]:
    return [
        (f"{entry['batch']}/{entry['phase']}/{metric}", value)
        for metric, value in entry["metrics"].items()
        if value is not None
    ]
