"""Detect batches that do not belong to the run in a folder, such as copies from other runs."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxattn.lab.storage import batch_state
from jaxattn.lab.storage.batch_state import Misplaced
from jaxattn.lab.storage.files import Damaged


def find_strays(directory: Path, known: Mapping[str, Any] | None, requested: Iterable[int]) -> dict[str, str]:
    """Return the batches in a folder that do not belong to the folder's run, mapped to the reasons.

    The manifest lists the batches of the run. An unlisted batch belongs to the run if it is intact, matches
    its file name, has only seeds from the manifest or from `requested`, and has no (cell, seed) pair in
    common with another batch. Without a manifest (`known` is None), a batch may have any seeds, and may be
    damaged unless its files belong to another batch.
    """
    cells: dict[str, list[int]] = {}
    seeds, planned = None, set()
    if known is not None:
        cells = {batch["name"]: batch["cells"] for batch in known["batches"]}
        seeds, planned = {*requested, *known["seeds"]}, {*cells, *known["elsewhere"]}
    found = {}
    for batch in batch_state.batches(directory):
        if batch in planned:
            continue
        location, (between, own) = batch_state.path(directory, batch), batch_state.spans(batch)
        if seeds is not None and not seeds.issuperset(own):
            found[batch] = f"{location}: has seeds that were not requested"
            continue
        try:
            if (saved := batch_state.read_state(directory, batch)) is None:
                continue
            if saved.batch is None:
                batch_state.check_cells_and_seeds(directory, batch, saved)
            cells[batch] = [int(cell) for cell in saved.origin.cells]
        except Damaged as error:
            if seeds is not None or isinstance(error, Misplaced):
                found[batch] = str(error)
            else:
                # There is no manifest, so infer from the file name which cells to compute again.
                cells[batch] = sorted({between[0], between[-1]}) if between else []
    while both := batch_state.overlaps(cells):
        for first, second in both:
            stray, other = (second, first) if second not in planned else (first, second)
            found[stray] = (
                f"{batch_state.path(directory, stray)}: contains (cell, seed) pairs that are also in {other}"
            )
            cells.pop(stray, None)
    return found
