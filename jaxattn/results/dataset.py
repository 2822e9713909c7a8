"""The data that a run was made on, drawn again from what its folder says."""

import msgspec

from jaxattn.core.errors import InputError
from jaxattn.data import GENERATORS, Splits
from jaxattn.results.run import Run
from jaxattn.study.dataset import dataset as of_seed
from jaxattn.study.dataset import swept_settings


def dataset(results: Run, *, seed: int, cell: int) -> Splits:
    """Draw the data of one seed of one cell again.

    Args:
        results: a results folder.
        seed: which seed of the run.
        cell: which cell.

    Returns:
        The corpora: train, test, validation, and the statistics of the tokens.

    Raises:
        InputError: an unknown cell or seed; data that are read from files or drawn by code of somebody's own,
            or those of a block: their study tells.
    """
    results.settings(cell)
    if seed not in (known := results.manifest["seeds"]):
        raise InputError(f"seed {seed}: the run has {', '.join(map(str, known[:20]))}; give one of them")
    if results.dataset_of is not None:
        return results.dataset_of(seed, cell)
    own = results.settings(cell)
    config = results.config(cell)
    block = config.get("blocks", {}).get(own.get("block"), {})
    table = config["data"] | {
        key.removeprefix("data."): x for key, x in own.items() if key.startswith("data.")
    }
    target = GENERATORS.get(str(table.get("kind")))
    if target is None or "data" in block:
        raise InputError(
            f"data.kind = {table.get('kind')!r}: a folder alone does not tell these data, as reading it "
            "executes and opens nothing that it names; ask the study, jaxattn.Study.read(SWEEP).dataset(...)"
        )
    settings = {name: table[name] for name in target.__struct_fields__ if name in table}
    try:
        data = msgspec.convert(settings, target)
    except msgspec.ValidationError as error:
        raise InputError(f"{results.directory}: data of another version: {error}; run it again") from None
    swept = swept_settings(entry["settings"] for entry in results.manifest["cells"])
    return of_seed(data, seed, str(results.manifest["dtype"]), swept).splits
