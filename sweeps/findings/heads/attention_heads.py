"""Measure attention heads in transformers layer by layer, and write a page with the results."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import head_figures
import pandas as pd
from head_measures import (
    FEWEST_GROUPS,
    NOT_DEFINED,
    NULLS,
    SINKS,
    TOKEN_KINDS,
    HeadSettings,
    measure_layer,
    verdicts,
)
from transformer import Position, TokenisedTexts, Transformer

import jaxattn as ja
from jaxattn.lab.figures.rendered import RenderedFigure
from jaxattn.lab.pages.layout import framed, summary_page, write_contents
from jaxattn.lab.results.labels import interval

# Format version, included in the digest of stored layers. Increase it whenever the measurements change.
_FORMAT = 3
# Approximate time in seconds to solve a max-margin problem on one core, for the Frobenius and nuclear norms.
_FROBENIUS, _NUCLEAR = 0.03, 20.0


@dataclass(frozen=True, repr=False)
class Heads:
    """Measurements of attention heads, as tables, figures and a page.

    Attributes:
        heads: one row per model, layer and head: fraction of sequences in which the head selects one token,
            kind and string of this token, entropy, gap between the two largest scores in nats, and
            ‖(W_Q, b_Q)‖ / √c, where c is the head dimension.
        margins: one row per head that selects a token, space, null baseline, draw and group of sequences:
            margin ratio, cosine, and the certificate. Group -1 contains all sequences in which the head
            selects one token.
        verdicts: one row per null baseline and head that selects a token: difference between cosines with
            its interval, corrected p-value and verdict.
        settings: the settings.
        facts: query position, number of texts, and number of tokens for the last model.
    """

    heads: pd.DataFrame
    margins: pd.DataFrame
    verdicts: pd.DataFrame
    settings: HeadSettings
    facts: dict[str, Any]

    def summary(self) -> list[str]:
        """Return sentences on the selected tokens of each model and on the comparison with null baselines.

        Attention sinks and other heads are reported separately.
        """
        lines = []
        for model, rows in self.heads.groupby("model", sort=False):
            counts = rows[rows["has_selection"]]["kind"].value_counts()
            kinds = [f"{counts[kind]} select {_KIND_WORDS[kind]}" for kind in TOKEN_KINDS if kind in counts]
            what = f": {', '.join(kinds)}" if kinds else ""
            lines.append(f"{model}: {counts.sum()} of {len(rows)} heads have a selection{what}.")
            own = self.verdicts[self.verdicts["model"] == model]
            for null, each in own.groupby("null", sort=False):
                sinks = each["kind"].isin(SINKS)
                for name, those in (("sinks", each[sinks]), ("other heads", each[~sinks])):
                    if len(those):
                        numbers = those["verdict"].value_counts()
                        words = [f"{numbers.get(x, 0)} {x}" for x in ("closer", "farther", "inconclusive")]
                        if NOT_DEFINED in numbers:
                            words.append(f"{numbers[NOT_DEFINED]} {NOT_DEFINED}")
                        what = f"{name} compared with {_NULL_WORDS[str(null)]}"
                        lines.append(f"{model}, {what}: {', '.join(words)}.")
        return lines

    def tables(self) -> list[tuple[str, pd.DataFrame]]:
        """Return (title, table) pairs for display."""
        several = self.heads["model"].nunique() > 1
        hidden = [] if several else ["model"]
        shown = self.heads.assign(
            **{
                "selecting sequences [95 %]": _intervals(self.heads, "selecting"),
                "entropy [95 %]": _intervals(self.heads, "entropy"),
                "score gap (nats)": self.heads["gap_nats"],
                "most common token": self.heads["token"],
            }
        )
        columns = [
            "model",
            "layer",
            "head",
            "selecting sequences [95 %]",
            "entropy [95 %]",
            "score gap (nats)",
        ]
        shown = shown[[*columns, "kind", "most common token"]].drop(columns=hidden)
        laid = []
        whole = self.margins[(self.margins["null"] == "none") & (self.margins["group"] >= 0)]
        keys = ["model", "layer", "head", "space"]
        means = whole.groupby(keys, sort=False).agg(
            groups=("ratio", "size"),
            ratio=("ratio", "mean"),
            cosine=("cosine", "mean"),
            gap=("gap", "max"),
            certified=("status", lambda x: "yes" if (x == "solved").all() else "no"),
        )
        laid.append(("Margins relative to the certified largest", means.reset_index().drop(columns=hidden)))
        found = self.verdicts
        compared = found.assign(**{"difference of cosines [95 %]": _intervals(found, "difference")})
        columns = ["model", "layer", "head", "kind", "null", "difference of cosines [95 %]", "groups"]
        compared = compared[[*columns, "corrected", "margins", "verdict"]].drop(columns=hidden)
        names = {"corrected": "corrected p", "margins": "quotient of margin ratios"}
        laid.insert(0, ("Comparison with nulls", compared.rename(columns=names)))
        return [*laid, ("Selections", shown)]

    def figures(self) -> list[RenderedFigure]:
        """Draw a figure with heat maps for each model and, for multiple models, curves over checkpoints.

        The heat maps show the layers and heads of a model.
        """
        models = list(self.heads["model"].unique())
        drawn = [head_figures.heat_maps(self.heads, self.margins, model) for model in models]
        return (
            [*drawn, head_figures.checkpoint_curves(self.heads, self.margins)] if len(models) > 1 else drawn
        )

    def html(self) -> str:
        """Return the page as self-contained HTML."""
        return self._html(self.figures())

    def _html(self, drawn: list[RenderedFigure]) -> str:
        heading = "What do attention heads select, and by what margin?"
        tables = [(title, table, 3) for title, table in self.tables()]
        return summary_page("Attention heads", heading, self.summary(), drawn, tables, _note(self))

    def write(self, directory: str | Path) -> list[Path]:
        """Write heads.html, the three tables as CSV files and the figures, and return their paths.

        Raises:
            RunError: the folder cannot be written.
        """
        drawn = self.figures()
        contents = {
            "heads.html": self._html(drawn).encode(),
            "heads.csv": self.heads.to_csv(index=False).encode(),
            "margins.csv": self.margins.to_csv(index=False).encode(),
            "verdicts.csv": self.verdicts.to_csv(index=False).encode(),
            **{f"{each.name}.svg": each.svg() for each in drawn},
        }
        return write_contents(directory, contents)

    def __repr__(self) -> str:
        return "\n".join(self.summary())

    def _repr_html_(self) -> str:
        return framed("Attention heads", self.html())


_KIND_WORDS = {
    "first": "the first token",
    "separator": "a special token or punctuation",
    "itself": "the query token itself",
    "neighbour": "a neighbour of the query token",
    "other": "another token",
}
_NULL_WORDS = {
    "shuffled": "shuffled queries",
    "covariance": "normal queries",
    "matched": "normal queries of the same spread",
    "untrained": "random weights",
}


def heads(
    models: str | Path | Sequence[str | Path],
    texts: Sequence[str],
    *,
    position: Position | None = None,
    length: int = 64,
    layers: Sequence[int] | None = None,
    settings: HeadSettings | None = None,
    out: str | Path | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Heads:
    """Measure which tokens attention heads select, and how far the heads are from max-margin directions.

    The scores of a head at one query position are linear in W_Q and, without rotary embeddings, in
    W = W_Kᵀ W_Q. Over the sequences in which a head selects one token, the margin of the head is divided by
    the certified maximum margin for the same selected tokens. The cosine between the matrix of the head and
    the max-margin matrix is compared with the cosines of null baselines; see `HeadSettings`.

    Args:
        models: a folder in Hugging Face format, or a list of folders, such as the checkpoints of one training
            run.
        texts: n texts.
        position: the query position, which is "first", "last" or an index; defaults to the first token for
            an encoder and the last token for a decoder.
        length: number of tokens to which texts are truncated.
        layers: indices of the layers; defaults to all layers.
        settings: thresholds, group sizes, and numbers of draws.
        out: a folder in which each finished layer is stored. A call with the same arguments resumes after
            the last finished layer.
        progress: function that receives progress messages, such as `print`.

    Raises:
        InputError: a folder does not contain a supported model, a text is too short for the query position,
            `length` is below 2, a layer does not exist, or `out` contains measurements made with other
            arguments.

    Source:
        Tarzanagh et al. 2023 (arXiv 2308.16898) for the max-margin problems in both norms.
    """
    if length < 2:
        raise ja.InputError(f"length: expected at least 2 tokens, got {length}")
    folders = [Path(models)] if isinstance(models, str | Path) else [Path(x) for x in models]
    settings = settings or HeadSettings()
    if not folders:
        raise ja.InputError("models: empty; expected at least one folder")
    _check_settings(settings)
    found, facts = [], {}
    for name, folder in zip(_names(folders), folders, strict=True):
        model = Transformer(folder)
        at: Position = position if position is not None else "last" if model.decoder else "first"
        tokenised = model.tokenize(texts, length, at)
        facts = {"position": at, "texts": len(texts), "tokens": int(tokenised.present.sum())}
        store = _Store(out, name, _digest(folder, texts, at, length, settings))
        for tables in _layers(name, model, tokenised, layers, settings, store, progress):
            found.append([table.assign(model=name) for table in tables])
    # Omit empty tables, because their columns have no dtype.
    rows, margins = (
        pd.concat([each for each in x if len(each)] or x[:1], ignore_index=True)
        for x in zip(*found, strict=True)
    )
    compared = [
        verdicts(own, margins[margins["model"] == model]).assign(model=model)
        for model, own in rows.groupby("model", sort=False)
    ]
    return Heads(rows, margins, pd.concat(compared, ignore_index=True), settings, facts)


def _layers(
    name: str,
    model: Transformer,
    texts: TokenisedTexts,
    layers: Sequence[int] | None,
    settings: HeadSettings,
    store: "_Store",
    progress: Callable[[str], None],
) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    chosen = range(model.num_layers) if layers is None else layers
    if wrong := [x for x in chosen if not 0 <= x < model.num_layers]:
        raise ja.InputError(
            f"layers: no layer {wrong[0]}; {model.folder} has {model.num_layers} layers, numbered from 0"
        )
    progress(_cost(name, model, len(chosen), len(texts.ids), settings))
    untrained = Transformer(model.folder, untrained_seed=settings.seed) if settings.draws else None
    for number in chosen:
        tables = store.read(number)
        if tables is None:
            tables = _measure(model, untrained, texts, number, settings)
            store.write(number, tables)
        yield tables
        progress(f"{name}: layer {number} of {model.num_layers} is finished")


def _check_settings(settings: HeadSettings) -> None:
    for name, valid, expected in (
        ("share", 0 <= settings.share <= 1, "a fraction from 0 to 1"),
        ("selecting", 0 <= settings.selecting <= 1, "a fraction from 0 to 1"),
        ("group", settings.group >= 2, "at least 2"),
        ("draws", settings.draws >= 0, "0 or more"),
        ("nuclear", settings.nuclear >= 0, "0 or more"),
    ):
        if not valid:
            raise ja.InputError(f"{name}: expected {expected}, got {getattr(settings, name)}")


def read_texts(path: str | Path, most: int | None = None) -> list[str]:
    """Read one text per line from a UTF-8 file, skipping empty lines.

    Args:
        path: the file.
        most: maximum number of texts to read, from the start of the file.

    Raises:
        InputError: the file cannot be read, it contains no text, or `most` is below 1.
    """
    if most is not None and most < 1:
        raise ja.InputError(f"most: expected at least 1 text, got {most}")
    try:
        content = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ja.InputError(f"{path}: {error.strerror}; check its path") from None
    except UnicodeDecodeError:
        raise ja.InputError(f"{path}: is not UTF-8; convert it") from None
    texts = [line.strip() for line in content.splitlines() if line.strip()]
    if not texts:
        raise ja.InputError(f"{path}: contains no text; expected one text per line")
    return texts[:most]


def _measure(
    model: Transformer,
    untrained: Transformer | None,
    texts: TokenisedTexts,
    number: int,
    settings: HeadSettings,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    other = None if untrained is None else untrained.layer(number, texts)
    return measure_layer(model.layer(number, texts), other, texts, number, settings)


class _Store:
    """Result tables for the layers measured so far. If a folder is given, they are saved in it."""

    def __init__(self, out: str | Path | None, name: str, digest: str) -> None:
        self._folder = None if out is None else Path(out) / "layers" / name
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / "arguments.json"
        if path.exists() and _read(path)["digest"] != digest:
            raise ja.InputError(
                f"{self._folder}: contains results for another model or version, or for other "
                "texts or settings; choose another folder"
            )
        _replace(path, json.dumps({"digest": digest}))

    def _path(self, number: int) -> Path | None:
        return None if self._folder is None else self._folder / f"layer_{number:03d}.json"

    def read(self, number: int) -> tuple[pd.DataFrame, pd.DataFrame] | None:
        """Return the tables of a finished layer, or None if the layer is not in the store."""
        path = self._path(number)
        if path is None or not path.exists():
            return None
        stored = _read(path)
        heads, margins = (
            pd.read_csv(
                StringIO(stored[x]), float_precision="round_trip", keep_default_na=False, na_values=[""]
            )
            for x in ("heads", "margins")
        )
        return heads.fillna({"kind": "", "token": ""}), margins

    def write(self, number: int, tables: tuple[pd.DataFrame, pd.DataFrame]) -> None:
        """Store the tables of a finished layer."""
        path = self._path(number)
        if path is not None:
            texts = dict(zip(("heads", "margins"), (x.to_csv(index=False) for x in tables), strict=True))
            _replace(path, json.dumps(texts))


def _replace(path: Path, content: str) -> None:
    """Write a file atomically, so that it is complete even after an interruption."""
    partial = path.with_suffix(".partial")
    partial.write_text(content, encoding="utf-8")
    partial.replace(path)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ja.InputError(
            f"{path}: cannot be read; delete the folder {path.parent} to measure its layers again"
        ) from None


def _digest(
    folder: Path, texts: Sequence[str], position: Position, length: int, settings: HeadSettings
) -> str:
    weights = {
        x.name: [x.stat().st_size, x.stat().st_mtime_ns] for x in sorted(folder.iterdir()) if x.is_file()
    }
    content = [_FORMAT, weights, list(texts), position, length, settings._asdict()]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _names(folders: Sequence[Path]) -> list[str]:
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [f"{k}_{name}" for k, name in enumerate(names)]


def _cost(name: str, model: Transformer, layers: int, texts: int, settings: HeadSettings) -> str:
    number = layers * model.num_heads
    groups = texts / settings.group
    problems = groups * (3 + len(NULLS) * settings.draws)
    seconds = number * (problems * _FROBENIUS + settings.nuclear * _NUCLEAR) / 2
    return (
        f"{name}: {layers} layers with {model.num_heads} heads, {texts} texts; "
        f"at most about {max(1, round(seconds / 60))} min on two cores, if all heads have a selection"
    )


def _intervals(table: pd.DataFrame, name: str) -> list[str]:
    rows = (
        table[[name, f"{name}_low", f"{name}_high"]]
        if f"{name}_low" in table
        else table[[name, "low", "high"]]
    )
    return [interval(*row) for row in rows.itertuples(index=False)]


def _note(found: Heads) -> str:
    settings, facts = found.settings, found.facts
    return (
        f"Query position {facts['position']}; {facts['texts']} texts, {facts['tokens']} tokens. A head has "
        f"a selection if some token has at least {settings.share:.0%} of the attention in at least "
        f"{settings.selecting:.0%} of the sequences, and in at least {FEWEST_GROUPS} groups of "
        f"{settings.group} sequences. Margins are over these groups of selecting "
        "sequences, relative to the certified largest margin of the same selection; W is restricted to the "
        "span of their queries. Space query: keys fixed, Frobenius norm of W_Q. Spaces frobenius, nuclear: "
        "W = W_Kᵀ W_Q; gradient flow on W favours the former, on W_K and W_Q the latter. Nulls keep W_Q and "
        "the keys. Their queries are those of other sequences (shuffled), normal with the covariance of all "
        "positions (covariance), or one such query plus the deviations of the head's own (matched). The null "
        "untrained is a model with random weights. Intervals: Clopper-Pearson for fractions of sequences, "
        "Student over sequences for the entropy, and over groups and draws for differences. p-values are "
        "corrected by Holm's method over all heads and nulls."
    )
