"""Export of records as a logbook: Markdown pages and CSV files, which need no software to be read."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from jaxattn.core.errors import InputError, at, writing
from jaxattn.lab.books import page
from jaxattn.lab.books.book import Book, Item, RunScale
from jaxattn.lab.books.record import Record, path_of
from jaxattn.lab.pages.layout import markdown, marked, texts
from jaxattn.lab.storage.files import write_file

_TEMPLATE = Path(__file__).with_name("logbook.md")


def export(book: Book, scale: RunScale, out: Path, target: Path, only: Sequence[str] = ()) -> list[Path]:
    """Write the records of a results folder as a logbook in Markdown.

        TARGET/README.md       scorecard of all claims, rules of the verdicts, limits
        TARGET/ITEM.md         a page for each item: claims, verdicts, numbers, reasons, command
        TARGET/findings.csv    all numbers
        TARGET/items           records, which `jaxattn reproduce BOOK --check --out TARGET` validates
        TARGET/files.csv       path, size and SHA-256 of every file: records, figures, criteria and studies

    Args:
        book: the book.
        scale: scale of the records.
        out: the results folder with the records.
        target: the folder to write, which may be new.
        only: names of the items; all if empty.

    Returns:
        The paths of the files.

    Raises:
        InputError: an item does not exist, or there is no record, or one is damaged.
        RunError: a file cannot be written.
    """
    with at("--only"):
        chosen = [book.item(name).name for name in only]
    every, _ = page.read_records(book, scale, out)
    found = {name: every[name] for name in every if not only or name in chosen}
    if not found:
        raise InputError(f"{out}: no records at scale {scale!r} to export; run the items first")
    contents = {
        "README.md": _readme(book, found, every),
        "findings.csv": page.findings_table(found).to_csv(index=False, lineterminator="\n"),
        **{f"{name}.md": _fill(**page.item_page(book.item(name), every)) for name in found},
    }
    files = {name: text.encode() for name, text in contents.items()}
    for name, record in found.items():
        files |= _attached(book.item(name), record, out)
    rows = [
        (name, len(content), hashlib.sha256(content).hexdigest()) for name, content in sorted(files.items())
    ]
    listed = pd.DataFrame(rows, columns=["file", "bytes", "sha256"])
    files["files.csv"] = listed.to_csv(index=False, lineterminator="\n").encode()
    with writing(target, "choose another folder with --export"):
        for name, content in files.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            write_file(target / name, content, target)
    return [target / name for name in files]


def _attached(item: Item, record: Record, out: Path) -> dict[str, bytes]:
    """Return the record, the figures, and the files of the item, by path in the logbook."""
    names = [path_of(item.name), *record.attached]
    files = {name: (out / name).read_bytes() for name in names}
    own = [path for path in sorted(item.folder.iterdir()) if path.suffix in (".py", ".toml", ".md")]
    shared = [item.book.folder / "book.toml"]
    shared += [source.path for source in item.sources.values() if not source.own]
    shared += [item.check_file] if item.check_file not in own else []
    for path in [*own, *shared]:
        folder = item.name if path.parent == item.folder else "shared"
        files[f"files/{folder}/{path.name}"] = path.read_bytes()
    return files


def _readme(book: Book, found: Mapping[str, Record], every: Mapping[str, Record]) -> str:
    table = pd.DataFrame(page.scorecard(book.item(name), every) for name in found).fillna("").replace("", "-")
    table["title"] = [f"[{title}]({name}.md)" for title, name in zip(table["title"], found, strict=True)]
    shown = [name for name in table if name != "item" and not table[name].eq("-").all()]
    return _fill(scorecard=table[shown], **page.first_page(book, found))


def _fill(**content: Any) -> str:
    """Return a page of the logbook."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    typeset = {"typeset": lambda table: markdown(texts(table).map(marked))}
    environment.filters |= {"marked": marked, "markdown": markdown, **typeset}
    text = environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(**content)
    return re.sub("\n{3,}", "\n\n", text).strip() + "\n"
