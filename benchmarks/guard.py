"""Check that a code change leaves the per-seed tables of the shipped studies bitwise unchanged.

    python benchmarks/guard.py against REV       # run the working tree and a revision, and compare
    python benchmarks/guard.py against REV --only quickstart joint_flow
    python benchmarks/guard.py record DIR        # run one tree; --root DIR runs another checkout
    python benchmarks/guard.py compare DIR DIR

The script runs all synthetic studies at a small size, one study on made-up texts, and one study on vectors.
Both trees are run with the copy of the script in the working tree. `MOVED` lists files that have a different
path in an older revision. Results depend on the processor, so only tables from the same machine can be
compared. The script detects changes in the numbers. It does not show that the numbers are correct.
"""

import argparse
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

HERE = Path(__file__).parents[1]
PAPER = "sweeps/paper"
# Former paths of files and modules, keyed by their current path.
MOVED = {
    "sweeps/paper": "jaxattn/lab/books/paper",
    "jaxattn.lab.engine": "jaxattn.engine",
    "jaxattn.lab.engine.monitor": "jaxattn.lab.engine.clock",
}
FEW = ("seeds=2", "data.sequences=64")
WIDE = (*FEW, "data.vocab_size=30")
SMALL = (*WIDE, "model.dim=32")
FLOW = (*FEW, "data.relevant=8", "data.length=4")
ONE_FLOW = (*FLOW, "data.vocab_size=20", "model.dim=32")
ALONE = (*ONE_FLOW, "axes=null", "figures=[]", "probes.max_margin=false")
QUERY = ("data.relevant=12", "data.test_sequences=32", "phases.query.steps=50")
JOINT = ("data.relevant=12", "data.test_sequences=32", "phases.joint.steps=20")
KEYS = ["cell", "seed", "phase", "step", "metric"]


class Small(NamedTuple):
    """Sweep file, with overrides that make its study small.

    Attributes:
        path: path of the sweep file, or its name in `MADE`.
        overrides: overrides of the form `key=value`.
    """

    path: str
    overrides: tuple[str, ...]


# Sweep files and code that this script writes.
MADE = {
    "texts.csv": "\n".join(
        ["text,label,split"]
        + [
            f"{' '.join('abcdefghij'[(i * k + k // 3) % 10] * 2 for k in range(1, 6 + i % 5))},{i % 2},"
            f"{'test' if i % 4 == 3 else 'train'}"
            for i in range(48)
        ]
    ),
    "texts.toml": """
name = "texts"
seeds = 3
data = {kind = "csv", path = "texts.csv", split_column = "split"}
model = {kind = "one_layer", dim = 32}
[[phases]]
name = "embed"
kind = "one_step"
step_size = 20.0
[[phases]]
name = "query"
kind = "descent"
train = ["p"]
optimizer = "sgd"
step_size = 1.0
steps = 40
""",
    "vectors.py": """
import jax
import jax.numpy as jnp

import jaxattn as ja


def marked(key, *, dim: int = 8, length: int = 5, sequences: int = 32):
    labels_key, place_key, noise_key = jax.random.split(key, 3)
    labels = jax.random.rademacher(labels_key, (sequences,))
    place = jax.random.randint(place_key, (sequences,), 0, length)
    X = 0.5 * jax.random.normal(noise_key, (sequences, length, dim))
    X = X.at[jnp.arange(sequences), place, 0].add(2.0).at[jnp.arange(sequences), place, 1].add(2.0 * labels)
    return ja.data.Vectors(targets=labels, X=X, classes=2)


class Attention(ja.Model):
    takes = ja.data.Vectors
    dim: int = 8

    def init(self, key, like, *, dtype):
        p, v = jax.random.normal(key, (2, self.dim), dtype)
        return {"p": p / self.dim, "v": v / self.dim}

    def outputs(self, params, data):
        return (jax.nn.softmax(data.X @ params["p"]) * (data.X @ params["v"])).sum(axis=-1)
""",
    "vectors.toml": """
name = "vectors"
seeds = 3
data = {kind = "vectors.py:marked", test_sequences = 16}
model = {kind = "vectors.py:Attention"}
[[phases]]
name = "both"
kind = "descent"
train = ["p", "v"]
optimizer = "adam"
step_size = 0.5
steps = 40
""",
}


STUDIES = {
    "quickstart": Small("sweeps/quickstart.toml", (*SMALL, *QUERY)),
    "one_step_law": Small(
        "sweeps/one_step_law.toml", (*WIDE, "data.relevant=12", "axes.model.dim=[16,32]", "figures=[]")
    ),
    "flow_methods": Small(
        "sweeps/flow_methods.toml",
        (*ONE_FLOW, "phases.query.steps=60", "blocks.normalised, plain gradients.phases.query.steps=60"),
    ),
    "margin_convergence": Small(
        "sweeps/margin_convergence.toml", (*FLOW, "axes.data.vocab_size=[20,24]", "axes.model.dim=[32]")
    ),
    "joint_flow": Small(
        "sweeps/margin_convergence.toml",
        (*ALONE, "phases.query.kind=joint_flow", "phases.query.until_norm=1e3"),
    ),
    "full_flow": Small(
        "sweeps/margin_convergence.toml",
        (*ALONE, "phases.query.kind=full_flow", "phases.query.until_norm=null"),
    ),
    "selection_vs_eta0": Small(
        "sweeps/selection_vs_eta0.toml",
        (
            *FLOW, "data.vocab_size=20",
            "axes.model.dim=[16,'inf']", "axes.phases.embed.step_size=[3.0,300.0]",
            "probes.own=[{kind='relevant_tokens',relevant=8}]",
        ),
    ),
    "own": Small("sweeps/own/study.toml", ("seeds=3", "phases.query.steps=40")),
    "own_clipped": Small("sweeps/own/clipped.toml", ("seeds=3", "phases.query.steps=40")),
    "minibatches": Small(
        "sweeps/quickstart.toml",
        (
            *SMALL, *QUERY, "phases.query.batch_size=16", "data.validation_sequences=32",
            "phases.query.patience=3", "phases.query.check_every=5",
        ),
    ),
    **{
        kind: Small("sweeps/quickstart.toml", (*SMALL, *QUERY, f"model.kind={kind}"))
        for kind in ("key_query", "two_layer", "two_layer_weights", "mlp")
    },
    "texts": Small("texts.toml", ()),
    "vectors": Small("vectors.toml", ()),
    "fig2_synthetic": Small(f"{PAPER}/fig2_synthetic/study.toml", (*SMALL, *JOINT)),
    "topics": Small(f"{PAPER}/topics/study.toml", (*SMALL, *JOINT)),
    "k_class_law": Small(
        f"{PAPER}/k_class_law/study.toml", (*WIDE, "data.relevant=12", "axes.model.dim=[16,32]", "figures=[]")
    ),
    "small_d": Small(f"{PAPER}/small_d/study.toml", (*WIDE, *JOINT, "axes.model.dim=[8,32]")),
    "label_noise": Small(f"{PAPER}/label_noise/study.toml", (*SMALL, *JOINT)),
    "xor": Small(f"{PAPER}/xor/study.toml", (*FEW, "data.test_sequences=32")),
    "negation": Small(f"{PAPER}/negation/study.toml", (*FEW, "data.test_sequences=32")),
}  # fmt: skip
# Study that is killed once and then resumed.
CONTINUED = "own"


def record(folder: Path, names: list[str], root: Path) -> None:
    """Run the small studies with the imported package and write the per-seed tables.

    Args:
        folder: output folder.
        names: names in `STUDIES`.
        root: the checkout whose sweep files are run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            begin = time.perf_counter()
            _write(_study(name, root, Path(scratch)).run(Path(scratch) / name, quiet=True), folder, name)
            print(f"{name}: {time.perf_counter() - begin:.1f} s", flush=True)
        if CONTINUED in names:
            _write(_continued(Path(scratch), root), folder, "continued")


def _study(name: str, root: Path, scratch: Path, *overrides: str):
    """Read a study from a checkout. If its sweep file is in `MADE`, write it to `scratch` first."""
    import jaxattn as ja

    small = STUDIES[name]
    if small.path in MADE:
        for file, content in MADE.items():
            (scratch / file).write_text(content)
        path = scratch / small.path
        overrides = (*overrides, f"data.path={scratch / 'texts.csv'}") if name == "texts" else overrides
    else:
        path = next(path for place in _places(small.path) if (path := root / place).exists())
    return ja.Study.read(path, [*small.overrides, *overrides])


def _places(place: str) -> list[str]:
    """Return the current location of a file or module and, if it has moved, its former location."""
    former = [old + place.removeprefix(new) for new, old in MOVED.items() if place.startswith(new)]
    return [place, *former]


def _write(results, folder: Path, name: str) -> None:
    results.records.to_parquet(folder / f"{name}.records.parquet")
    results.tokens.to_parquet(folder / f"{name}.tokens.parquet")


def _continued(scratch: Path, root: Path):
    """Run a study in a process that is killed in the second phase, resume it, and return its results."""
    # A forked process would inherit locks held by other threads, and these would never be released.
    child = multiprocessing.get_context("spawn").Process(target=_killed, args=(scratch, root))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL, "it was not killed"
    return _study(CONTINUED, root, scratch, "chunk=3").run(scratch / "continued", quiet=True)


def _module(name: str):
    """Import a module from its current or former location."""
    for place in _places(name):
        with suppress(ModuleNotFoundError):
            return importlib.import_module(place)
    raise ModuleNotFoundError(name)


def _killed(scratch: Path, root: Path) -> None:
    """Run the study with a checkpoint after every step, and kill this process in the second phase."""
    Reporter = _module("jaxattn.lab.engine.progress").Reporter

    class Killing(Reporter):
        def update(self, place: str, *_, **__) -> None:
            if "query step" in place:
                os.kill(os.getpid(), signal.SIGKILL)

    with Killing(quiet=True) as reporter:
        saving = _module("jaxattn.lab.engine.monitor").Intervals(0.0, 0.0, float("inf"))
        study = _study(CONTINUED, root, scratch, "chunk=3")
        engine = _module("jaxattn.lab.engine.run_study")
        run = getattr(engine, "run_study", None) or engine.run
        run(study, scratch / "continued", command="guard", reporter=reporter, intervals=saving)


def compare(before: Path, after: Path) -> int:
    """Print the differences between two recordings and return the number of tables that differ."""
    differing = 0
    for name in sorted({x.name for folder in (before, after) for x in folder.glob("*.parquet")}):
        if not ((before / name).exists() and (after / name).exists()):
            print(f"{name}: only in {before if (before / name).exists() else after}")
            differing += 1
            continue
        if difference := _difference(pd.read_parquet(before / name), pd.read_parquet(after / name)):
            print(f"{name}: {difference}")
            differing += 1
    print(f"{differing} tables differ")
    return differing


def _difference(a: pd.DataFrame, b: pd.DataFrame) -> str:
    if "metric" not in a:
        a, b = (
            x.melt([k for k in ("cell", "seed", "phase", "token", "class") if k in x], var_name="metric")
            for x in (a, b)
        )
    keys = [key for key in a.columns if key != "value"]
    both = a.merge(b, on=keys, how="outer", suffixes=("_a", "_b"), indicator=True)
    texts = [
        f"{len(rows)} rows of {', '.join(sorted(rows['metric'].astype(str).unique()))} are only {where}"
        for side, where in (("left_only", "before"), ("right_only", "after"))
        if len(rows := both[both["_merge"] == side])
    ]
    shared = both[both["_merge"] == "both"]
    x, y = shared["value_a"].to_numpy(), shared["value_b"].to_numpy()
    same = [u == v or (u != u and v != v) for u, v in zip(x, y, strict=True)]
    if not all(same):
        rows = _relative(shared)[~np.array(same)]
        most = rows.groupby("metric", observed=True)["relative"].agg(["size", "max"])
        named = [f"{metric} {size:.0f} by {largest:.1e}" for metric, (size, largest) in most.iterrows()]
        texts.append(
            f"{len(rows)} of {len(shared)} differ, at most by {most['max'].max():.1e} of their column: "
            + ", ".join(named)
        )
    return "; ".join(texts)


def _relative(shared: pd.DataFrame) -> pd.DataFrame:
    """Add a column "relative" with the difference relative to the largest value of the same metric.

    The largest value of a metric is taken over the seeds and steps of a phase and cell. A value that is zero
    up to rounding is thus compared with the size of the quantity, not with its own rounding error. The
    relative difference is infinite where only one of the two values is finite.
    """
    u, v = (pd.to_numeric(shared[f"value_{side}"], errors="coerce").astype(float) for side in "ab")
    size = u.abs().where(np.isfinite(u))
    size = size.groupby([shared[key] for key in ("cell", "phase", "metric")], observed=True).transform("max")
    relative = (u - v).abs() / size.clip(lower=1e-300)
    relative[np.isfinite(u) != np.isfinite(v)] = np.inf
    return shared.assign(relative=relative)


def against(revision: str, names: list[str]) -> int:
    """Record a revision and the working tree on this machine, and return the number of tables that differ."""
    with tempfile.TemporaryDirectory() as scratch:
        other = Path(scratch) / "other"
        subprocess.run(["git", "worktree", "add", "--detach", str(other), revision], cwd=HERE, check=True)
        try:
            for root, name in ((other, "before"), (HERE, "after")):
                command = [sys.executable, __file__, "record", str(Path(scratch) / name), "--root", str(root)]
                command += ["--only", *names]
                subprocess.run(command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, check=True)
            return compare(Path(scratch) / "before", Path(scratch) / "after")
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(other)], cwd=HERE, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    both = commands.add_parser("against")
    both.add_argument("revision")
    recording = commands.add_parser("record")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--root", type=Path, default=HERE)
    for parts in (both, recording):
        parts.add_argument("--only", nargs="*", default=list(STUDIES), choices=list(STUDIES))
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    asked = parser.parse_args()
    if asked.command == "record":
        record(asked.folder, asked.only, asked.root.resolve())
    elif asked.command == "compare":
        sys.exit(bool(compare(asked.before, asked.after)))
    else:
        sys.exit(bool(against(asked.revision, asked.only)))


if __name__ == "__main__":
    main()
