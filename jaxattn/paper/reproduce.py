"""Running the items: their sweeps, resumable, and then the page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from jaxattn.errors import InputError, RunError
from jaxattn.paper import page
from jaxattn.paper.items import DATA, ITEMS, Item
from jaxattn.paper.page import Page
from jaxattn.study import sweepfile
from jaxattn.study.config import Sweep
from jaxattn.study.progress import Reporter
from jaxattn.study.run import run_sweep

Scale = Literal["laptop", "full"]
SWEEPS = Path("sweeps/paper")


def reproduce(
    *,
    out: Path,
    command: str,
    reporter: Reporter,
    only: Sequence[str] = (),
    scale: Scale = "laptop",
    data_dir: Path | None = None,
    sweeps: Path = SWEEPS,
    overrides: Sequence[str] = (),
) -> Page:
    """Run items and write the page of all items; what is finished is not run again.

    Args:
        out: the results folder; runs go to out/runs/SCALE/NAME.
        command: the command line, for the manifests.
        reporter: where progress goes.
        only: names of the items to run, in this order; all by default. The page shows the others as far
            as they are done.
        scale: "full" runs the sweep files as they are, "laptop" with the items' overrides.
        data_dir: the folder with the data sets, see `items.DATA`; None leaves their items out.
        sweeps: the folder of the sweep files.
        overrides: further overrides `key=value`, for every item.

    Returns:
        What was written.

    Raises:
        InputError: an unknown item, a sweep file that is missing or wrong.
        RunError: the page cannot be written.
        Interrupted: SIGINT or SIGTERM came; the same command continues.
    """
    known = {item.name: item for item in ITEMS}
    for name in only:
        if name not in known:
            raise InputError(f"--only {name}: no such item; there are {', '.join(known)}")
    wanted = [known[name] for name in only or known if known[name].measure]
    reasons: dict[str, str] = {}
    for number, item in enumerate(wanted, 1):
        if item.needs != "nothing" and data_dir is None:
            continue
        reporter.note(f"{number} of {len(wanted)}: {item.name}")
        config = sweep(item, scale, data_dir, sweeps, overrides)
        try:
            outcome = run_sweep(config, folder(out, scale, item), command=command, reporter=reporter)
        except (InputError, RunError) as error:
            reasons[item.name] = str(error)
        else:
            if outcome.errors:
                reasons[item.name] = outcome.errors[0]["reason"]
        if item.name in reasons:
            reporter.note(f"{item.name}: {reasons[item.name]}")
    runs = {item.name: folder(out, scale, item) for item in ITEMS}
    return page.write(out, runs, scale=scale, failed=reasons)


def sweep(
    item: Item, scale: Scale, data_dir: Path | None, sweeps: Path = SWEEPS, overrides: Sequence[str] = ()
) -> Sweep:
    """Load the sweep of an item at a scale, with its data below `data_dir`."""
    changes = list(item.laptop) if scale == "laptop" else []
    if item.needs in DATA and data_dir is not None:
        place = DATA[item.needs]
        changes.append(f"{place.key}={data_dir / place.below}")
    return sweepfile.load(sweeps / f"{item.name}.toml", [*changes, *overrides])


def folder(out: Path, scale: Scale, item: Item) -> Path:
    """Say where the run of an item lies."""
    return out / "runs" / scale / item.name
