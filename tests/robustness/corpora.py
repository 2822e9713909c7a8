"""Malformed corpora: each raises one line, or is read as by an independent reader."""

import csv
import io
import json
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import jaxattn as ja
from jaxattn.lab import kinds
from jaxattn.lab.texts import text

WORDS = ["good", "bad", "film", "isn't", "été", "naïf", "a", "42", "<br />", "“so”", "\u2028", "x_y", "Ünder"]
FIELDS = ["text", "label", "title", "split"]
# Values that replace the text or the label of a row.
ODD: list[Any] = [None, True, 7, -1, 1.5, float("nan"), [], {}, [1], "\0", "", "1\n", 10**30, "w " * 99_999]
READERS = kinds.classes(kinds.READERS)
KINDS = ["csv", "jsonl", "lines", "folder", "parquet"]


def attack(count: int, seed: int) -> dict[str, int]:
    """Read randomly malformed corpora.

    Args:
        count: number of corpora.
        seed: seed of all random choices.

    Returns:
        Number of corpora of each kind that were rejected, and that were read.

    Raises:
        AssertionError: another exception than one line, or another corpus than the files contain.
    """
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            kind, place = rng.choice(KINDS), f"corpora.attack(seed={seed}), corpus {number}"
            root = Path(folder, str(number))
            root.mkdir()
            whole, settings = _write(kind, root, rng)
            try:
                source = READERS[kind](**settings)
                found = text.load_text(source, cache_dir=Path(folder, "cache"))
            except ja.InputError as error:
                if "\n" in str(error) or whole:
                    raise AssertionError(f"{place} ({kind}) is refused: {error}") from error
                outcomes[f"{kind} refused"] += 1
                continue
            except Exception as error:
                raise AssertionError(f"{place} ({kind}): {error!r}") from error
            try:
                rows = list(_READ[kind](root, settings))
            except Exception as error:
                raise AssertionError(f"{place} ({kind}) is read, but it cannot be: {error!r}") from error
            if (expected := _expected(rows, settings)) != (held := _held(found)):
                raise AssertionError(f"{place} ({kind}) is read as {held!r:.300}, not {expected!r:.300}")
            outcomes[f"{kind} read"] += 1
    return dict(sorted(outcomes.items()))


def _write(kind: str, root: Path, rng: random.Random) -> tuple[bool, dict[str, Any]]:
    """Write a corpus; return whether it is valid, and the settings to read it with."""
    labels = rng.choice([(0, 1), ("neg", "pos"), (1, 2, 5)])
    rows = [
        {
            "text": " ".join(rng.choices(WORDS, k=rng.randrange(1, 9))) + " end",
            "label": labels[number % len(labels)],
            "title": rng.choice(WORDS),
            "split": "train",
        }
        for number in range(rng.randrange(3, 12))
    ]
    settings: dict[str, Any] = {"path": str(root if kind == "folder" else root / "rows"), "labels": labels}
    settings["test"] = None
    whole = rng.random() < 0.2
    if rng.random() < 0.3 and kind != "parquet":
        settings["encoding"] = rng.choice(["latin-1", "utf-16"])
        rows = [row | {"text": row["text"].encode("latin-1", "ignore").decode("latin-1")} for row in rows]
    if rng.random() < 0.3 and kind in ("csv", "jsonl", "parquet"):
        settings["text"] = ("title", "text") if rng.random() < 0.5 else ("text", "title")
    encoding = settings.get("encoding", "utf-8")
    rows = [row | {"title": row["title"].encode(encoding, "ignore").decode(encoding)} for row in rows]
    if not whole:
        for _ in range(rng.choice([0, 0, 1, 2])):
            rng.choice(rows)[rng.choice(FIELDS)] = rng.choice(ODD)
        settings |= rng.choice([{}, {}, {"labels": (0, 1, 2)}, {"label": "stars"}, {"encoding": "ascii"}])
        if kind in ("lines", "folder", "parquet"):
            for name in {"label", "text", "encoding"} - set(READERS[kind].__struct_fields__):
                settings.pop(name, None)
    return whole, _WRITE[kind](root, rows, settings, encoding, rng, whole)


def _write_csv(root, rows, settings, encoding, rng, whole):
    names = rng.choice([FIELDS, FIELDS[::-1]])
    if not whole and rng.random() < 0.15:
        names = [*names, rng.choice(FIELDS)]
    delimiter = rng.choice([",", "\t", ";"])
    content = io.StringIO()
    writer = csv.writer(content, delimiter=delimiter, lineterminator=rng.choice(["\n", "\r\n"]))
    if rng.random() < 0.5:
        settings["columns"] = tuple(names)
    else:
        writer.writerow(names)
    writer.writerows([row[name] for name in names] for row in rows)
    settings["delimiter"] = delimiter if whole or rng.random() < 0.9 else ","
    _put(root / "rows", content.getvalue().encode(encoding, "replace"), rng, whole)
    return settings


def _write_jsonl(root, rows, settings, encoding, rng, whole):
    lines = []
    for row in rows:
        line = json.dumps(row, ensure_ascii=rng.random() < 0.5)
        if not whole and rng.random() < 0.05:
            line = rng.choice(
                [line[:-1] + ', "text": "twice"}', "[" * 5000, "[]", "{}", line + line, '{"text": "\\ud800"}']
            )
        lines.append(line + "\n")
    _put(root / "rows", "".join(lines).encode(encoding, "replace"), rng, whole)
    return settings


def _write_lines(root, rows, settings, encoding, rng, whole):
    separator = rng.choice([" ", "\t", "|"])
    if separator == "|" or rng.random() < 0.3:
        settings["separator"] = separator
    lines = [f"{row['label']}{separator}{row['text']}\n" for row in rows]
    _put(root / "rows", "".join(lines).encode(encoding, "replace"), rng, whole)
    return settings


def _write_folder(root, rows, settings, encoding, rng, whole):
    for number, row in enumerate(rows):
        name = str(row["label"]).replace("/", "").replace("\0", "")[:20].strip() or "empty"
        path = root / "train" / name / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        _put(path, str(row["text"]).encode(encoding, "replace"), rng, whole or rng.random() < 0.8)
    return settings


def _write_parquet(root, rows, settings, encoding, rng, whole):
    columns = {name: [row[name] for row in rows] for name in FIELDS}
    for name, values in columns.items():
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowException, OverflowError):
            columns[name] = pa.array([str(x) for x in values])
    names = list(columns)
    if not whole and rng.random() < 0.15:
        names[rng.randrange(4)] = rng.choice(FIELDS)
    pq.write_table(pa.Table.from_arrays(list(columns.values()), names=names), root / "rows")
    _put(root / "rows", (root / "rows").read_bytes(), rng, whole or rng.random() < 0.5)
    return settings


def _put(path: Path, content: bytes, rng: random.Random, whole: bool) -> None:
    """Write a file, damaged at random."""
    for _ in range(0 if whole else rng.choice([0, 0, 1, 1, 4])):
        place = rng.randrange(len(content) + 1)
        content = rng.choice(
            [
                content[:place],
                content[place:],
                content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :],
                content[:place] + rng.choice([b"\0", b'"', b"\n", b"\r", b"\xff\xfe", b"\xed\xa0\x80", b"{"]),
                content[:place] + rng.choice([b"\0", b'"', b"\n", b"\r", b",", b"\xe9"]) + content[place:],
                content * 2,
                b"",
            ]
        )
    path.write_bytes(content)


def _read_csv(root: Path, settings: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    content = _decoded(root / "rows", settings)
    named = [list(settings["columns"])] if "columns" in settings else []
    header, *rows = named + [
        line.split(settings["delimiter"]) for line in re.split("\r\n|\r|\n", content) if line
    ]
    label = settings.get("label", "label")
    known = {"", *map(str, settings["labels"])}
    if not all(len(row) == len(header) and _label(row[header.index(label)]) in known for row in rows):
        lines = csv.reader(io.StringIO(content, newline=""), delimiter=settings["delimiter"], strict=True)
        header, *rows = [*named, *lines]
    for row in rows:
        if row:
            assert len(row) == len(header)
            yield _fields(list(zip(header, row, strict=True)), settings)


def _read_jsonl(root: Path, settings: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for line in io.StringIO(_decoded(root / "rows", settings), newline=None):
        if line.strip():
            yield _fields(json.loads(line, object_pairs_hook=list), settings)


def _read_lines(root: Path, settings: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for line in io.StringIO(_decoded(root / "rows", settings), newline=None):
        if line.strip():
            label, content = line.rstrip("\n").split(settings.get("separator"), 1)
            yield content, label


def _read_folder(root: Path, settings: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for label in settings["labels"]:
        for path in sorted((root / "train" / str(label)).glob("*.txt"), key=lambda path: path.name):
            yield _decoded(path, settings), label


def _read_parquet(root: Path, settings: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    # Parts that are not read may be damaged.
    table = pq.ParquetFile(root / "rows").read(columns=_wanted(settings))
    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        yield _fields(list(zip(table.column_names, row, strict=True)), settings)


def _decoded(path: Path, settings: dict[str, Any]) -> str:
    encoding = settings.get("encoding", "utf-8-sig")
    return path.read_bytes().decode("cp1252" if encoding == "latin-1" else encoding)


def _label(label: Any) -> str:
    """Format a label as in settings."""
    said = {"true": "1", "false": "0"}.get(str(label).lower(), str(label))
    whole = re.fullmatch(r"[+]?(-?(?:0|[1-9]\d*))(?:\.0*)?", said, re.ASCII)
    return whole[1] if whole else said


def _wanted(settings: dict[str, Any]) -> list[str]:
    given = settings.get("text", "text")
    return [*([given] if isinstance(given, str) else given), settings.get("label", "label")]


def _fields(pairs: list[tuple[str, Any]], settings: dict[str, Any]) -> tuple[str, Any]:
    values = []
    for wanted in _wanted(settings):
        (value,) = [value for name, value in pairs if name == wanted]
        values.append(value)
    *texts, label = values
    texts = ["" if content is None or content != content else content for content in texts]
    assert all(isinstance(content, str) for content in texts)
    return "\n".join(texts), label


def _expected(rows: list[tuple[str, Any]], settings: dict[str, Any]) -> list[tuple[Any, dict[str, int]]]:
    """Return the label and the word counts of every row."""
    found = []
    for content, label in rows:
        plain = re.sub(r"<br\s*/?>", " ", content.lower().replace("’", "'"))
        words = Counter(re.findall(r"[^\W_]+(?:'[^\W_]+)*", plain))
        assert words
        found.append((_label(label), dict(words)))
    return found


def _held(found: text.TextCorpora) -> list[tuple[Any, dict[str, int]]]:
    corpus, tokens = found.train, found.vocabulary.tokens
    owner, index, count = (np.asarray(x) for x in (corpus.bags.owner, corpus.bags.index, corpus.bags.count))
    rows: list[dict[str, int]] = [{} for _ in range(corpus.num_examples)]
    for row, places, numbers in zip(owner, index, count, strict=True):
        if row < len(rows):
            rows[row] |= {tokens[s]: int(n) for s, n in zip(places, numbers, strict=True) if n}
    names = [corpus.class_names[k] for k in np.asarray(corpus.class_index)]
    return list(zip(names, rows, strict=True))


_WRITE = {
    "csv": _write_csv,
    "jsonl": _write_jsonl,
    "lines": _write_lines,
    "folder": _write_folder,
    "parquet": _write_parquet,
}
_READ = {
    "csv": _read_csv,
    "jsonl": _read_jsonl,
    "lines": _read_lines,
    "folder": _read_folder,
    "parquet": _read_parquet,
}
