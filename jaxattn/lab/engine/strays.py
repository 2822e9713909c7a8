"""Batches in a results folder that are not of its run: copies under other names, and from other folders."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxattn.lab.storage import batch_state
from jaxattn.lab.storage.batch_state import Misplaced
from jaxattn.lab.storage.files import Damaged


def find(directory: Path, known: Mapping[str, Any] | None, asked: Iterable[int]) -> dict[str, str]:
    """Find the batches of a folder that are not of its run.

    The manifest lists the batches of the run. Others count if they are whole, under their own names, of seeds
    that the manifest or the user asks for, and if no other batch has the same lanes. Without a manifest all
    seeds count.

    Args:
        directory: the results folder.
        known: its manifest; None if it is lost.
        asked: the seeds that the user asks for.

    Returns:
        The reason for every such batch, by its name.
    """
    cells: dict[str, list[int]] = {}
    seeds, planned = None, set()
    if known is not None:
        cells = {batch["name"]: batch["cells"] for batch in known["batches"]}
        seeds, planned = {*asked, *known["seeds"]}, {*cells, *known["elsewhere"]}
    found = {}
    for batch in batch_state.batches(directory):
        if batch in planned:
            continue
        place, (between, own) = batch_state.path(directory, batch), batch_state.spans(batch)
        if seeds is not None and not seeds.issuperset(own):
            found[batch] = f"{place}: seeds that nobody asked for"
            continue
        try:
            if (saved := batch_state.read(directory, batch)) is None:
                continue
            if saved.batch is None:
                batch_state.check_lanes(directory, batch, saved)
            cells[batch] = [int(cell) for cell in saved.origin.cells]
        except Damaged as error:
            if seeds is not None or isinstance(error, Misplaced):
                found[batch] = str(error)
            else:
                # Without a manifest, its name alone determines what is computed again.
                cells[batch] = sorted({between[0], between[-1]}) if between else []
    while both := batch_state.overlaps(cells):
        for first, second in both:
            stray, other = (second, first) if second not in planned else (first, second)
            found[stray] = f"{batch_state.path(directory, stray)}: has seeds that {other} has too"
            cells.pop(stray, None)
    return found
