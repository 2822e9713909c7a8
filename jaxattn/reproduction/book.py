"""An item: a figure, table or number that the paper or its review thread reports, and how it is run again."""

import hashlib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jaxattn.api import Study
from jaxattn.paper.measures import Measure

Needs = Literal["nothing", "imdb", "yelp"]
Scale = Literal["laptop", "full"]
SWEEPS = Path(__file__).with_name("sweeps")


class Elsewhere(NamedTuple):
    """Where an item is shown that is not run here: in words, the page relative to ours, the command."""

    words: str
    link: str
    command: str


class Place(NamedTuple):
    """Where data lies: the key of the sweep file that says so, its place below DIR, and what it is."""

    key: str
    below: str
    what: str


DATA = {
    "imdb": Place("data.data_dir", "tfds", "imdb_reviews of tensorflow-datasets"),
    "yelp": Place("data.path", "yelp_stars.parquet", "reviews with columns text, label, stars and split"),
}


@dataclass(frozen=True)
class Item:
    """One figure, table or number: a study and what judges its results.

    Attributes:
        name: its name; its study is sweeps/NAME.toml in this package.
        reports: what the paper reports, with its source.
        chosen: what is not published and was chosen.
        compared: how it is compared.
        measure: judges a finished run, by findings; None if it is shown elsewhere.
        needs: the data it needs.
        laptop: overrides of the study at laptop scale.
        figures: figures of the run to show, as in a sweep file.
        elsewhere: where it is shown, if it is not run here.
        reason: why what differs does, as far as varying one thing at a time has shown.
    """

    name: str
    reports: str
    chosen: str
    compared: str
    measure: Measure | None = None
    needs: Needs = "nothing"
    laptop: tuple[str, ...] = ()
    figures: tuple[dict[str, Any], ...] = ()
    elsewhere: Elsewhere | None = None
    reason: str = ""

    def study(self, scale: Scale, data_dir: Path | None = None, overrides: Sequence[str] = ()) -> Study:
        """Make its study at a scale, with its data below `data_dir`; see `run.reproduce`."""
        changes = list(self.laptop) if scale == "laptop" else []
        if self.needs in DATA and data_dir is not None:
            place = DATA[self.needs]
            changes.append(f"{place.key}={data_dir / place.below}")
        return Study.read(SWEEPS / f"{self.name}.toml", [*changes, *overrides])

    def digest(self, scale: Scale) -> str:
        """Name what is run at a scale: equal for equal settings, wherever the data lies."""
        settings = tomllib.loads((SWEEPS / f"{self.name}.toml").read_text(encoding="utf-8"))
        changes = self.laptop if scale == "laptop" else ()
        return hashlib.sha256(json.dumps([settings, changes], sort_keys=True).encode()).hexdigest()
