"""Settings of all tests: shapes of the public API are checked, and warnings are errors (pyproject.toml)."""

import ctypes
import gc
import os
import signal
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.lab import cli
from jaxattn.lab.study.import_paths import ImportPaths

SWEEPS = Path(__file__).parent / "sweeps"


def pytest_configure(config):
    """Let all but the slow set compile fast, here and in processes that tests start.

    They compile more than they compute. The slow set runs programs as they run for users.
    """
    gc.set_threshold(*cli.RARELY)
    if config.option.markexpr not in ("slow", "exhaustive", "chips", "device"):
        jax.config.update("jax_disable_most_optimizations", True)
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
        os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *fast_compilation()])


def pytest_collection_finish():
    """Leave modules and tests, which live as long as the process, out of garbage collections."""
    gc.freeze()


def fast_compilation():
    """List the flags that make compilation fast, of those that XLA knows: it aborts at an unknown one."""
    flags = ["--xla_cpu_parallel_codegen_split_count=1"]
    if jaxlib.version.__version_info__ < (0, 11, 1):
        flags.append("--xla_cpu_use_fusion_emitters=false")
    return flags


@pytest.fixture(scope="session")
def tables():
    """Read the tables of a sweep file that tests share, with changes."""

    def read(name="small", **changes):
        return tomllib.loads((SWEEPS / f"{name}.toml").read_text(encoding="utf-8")) | changes

    return read


@pytest.fixture(scope="session")
def study(tables):
    """Make a study of a sweep file that tests share, with changes."""

    def make(name="small", **changes):
        return ja.Study.from_tables(tables(name, **changes), ImportPaths(SWEEPS))

    return make


@pytest.fixture(autouse=True, scope="session")
def compiled_once(pytestconfig, tmp_path_factory):
    """Let workers, and later sessions, share compiled programs; `pytest --cache-clear` forgets them.

    With `-p no:cacheprovider` they are in a temporary folder, which the workers of one session share.
    """
    if pytestconfig.pluginmanager.has_plugin("cacheprovider"):
        folder = pytestconfig.cache.mkdir("compiled")
    else:
        own = tmp_path_factory.getbasetemp()
        folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "compiled"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(autouse=True, scope="module")
def forgotten():
    """Give back what the programs of the modules so far hold before two workers come to 6 GB, on Linux."""
    yield
    if sys.platform == "linux" and resident() > 2.9 * 2**30:
        jax.clear_caches()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)


def resident():
    """Read the memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Keep the text cache of the user out of the tests."""
    monkeypatch.setenv("JAXATTN_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True)
def own_interrupts():
    """Give the handler of SIGINT back that commands replace for as long as their process lives."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def call(monkeypatch, capsys):
    """Run a command of `jaxattn`: its status, what it prints and what it says."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["jaxattn", *map(str, words)])
        # Paths of temporary folders are long, and what is looked for in the output must not be wrapped.
        monkeypatch.setenv("COLUMNS", "300")
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out, error = capsys.readouterr()
        assert "Traceback (most recent" not in out + error
        return stopped.value.code, out, error

    return run


@pytest.fixture
def x64():
    """Run a test in float64."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def rng():
    """A NumPy generator with a fixed seed."""
    return np.random.default_rng(0)


@pytest.fixture
def ragged(rng):
    """Make a corpus of K classes with repeated tokens, long and short bags and unused tokens."""

    def make(classes):
        lengths = [1, 2, 2, 150, *rng.integers(1, 70, 12)]
        drawn = rng.integers(0, classes, len(lengths))
        labels = (2 * drawn - 1 if classes == 2 else drawn).tolist()
        sequences = [rng.integers(0, 75, length).tolist() for length in lengths]
        return ja.data.from_sequences(sequences, labels, vocab_size=81, num_classes=classes)

    return make


@pytest.fixture
def cleared():
    """Clear traced functions before and after a test that changes their constants."""
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.fixture
def assert_matches_reference():
    """Compare logits and all gradients of a model with those of a reference, in float64."""

    def compare(logits, reference, params, corpus, rtol=1e-10, atol=1e-12):
        ids, mask = ja.models.reference.padded_sequences(corpus)

        def loss(form, *data):
            def compute(x):
                f = form(x, *data)
                return ja.losses.classification(f, corpus.targets).mean(), f

            return jax.jit(jax.grad(compute, has_aux=True))

        ours, mine = loss(logits, corpus)(params)
        theirs, expected = loss(reference, ids, mask)(params)
        np.testing.assert_allclose(mine, expected, rtol=rtol, atol=atol)
        assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(theirs)) > 1e-4
        for name, expected in vars(theirs).items():
            np.testing.assert_allclose(getattr(ours, name), expected, rtol=rtol, atol=atol, err_msg=name)

    return compare


class Instance(NamedTuple):
    """A max-margin problem. Every sequence selects its tokens of highest score."""

    corpus: Any
    E: np.ndarray
    scores: np.ndarray
    selection: Any


def bags(corpus):
    """Every sequence as the sorted list of its distinct tokens, by way of the sequences written out."""
    ids, mask = map(np.asarray, ja.models.reference.padded_sequences(corpus))
    return [np.unique(row[real]).tolist() for row, real in zip(ids, mask, strict=True)]


def selected(corpus, selection):
    """The selected tokens of every sequence, sorted."""
    index, mask = np.asarray(corpus.bags.index), np.asarray(selection.mask)
    owner = np.broadcast_to(np.asarray(corpus.bags.owner)[:, None], mask.shape)
    return [sorted(index[mask & (owner == x)].tolist()) for x in range(corpus.num_examples)]


@pytest.fixture(scope="session")
def loops():
    """Return helpers that compute bags and selections by loops."""
    return bags, selected


@pytest.fixture(scope="session")
def shortest():
    """The shortest x with A x ≥ b and C x = 0 by clarabel, or None if there is none."""

    import clarabel  # only tests of directions need it
    import scipy.sparse as sp

    def solve(rows, required, equal=()):
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
        matrix = np.array([*equal, *(-row for row in rows)])
        right, size = np.append(np.zeros(len(equal)), -np.array(required)), matrix.shape[1]
        cones = [clarabel.ZeroConeT(len(equal)), clarabel.NonnegativeConeT(len(rows))]
        problem = sp.csc_matrix(sp.eye(size)), np.zeros(size), sp.csc_matrix(matrix), right, cones, settings
        solution = clarabel.DefaultSolver(*problem).solve()
        assert str(solution.status) in ("Solved", "AlmostSolved", "PrimalInfeasible")
        return None if str(solution.status) == "PrimalInfeasible" else np.array(solution.x)

    return solve


@pytest.fixture(scope="session")
def instances():
    """22 problems: 10 with V < d, 12 with V > d of which some are infeasible; half of each with ties."""
    rng = np.random.default_rng(0)
    keys = jax.random.split(jax.random.key(0), 2)
    sizes = {"vocab_size": 12, "relevant": 2, "length": 5, "sequences": 10}
    corpora = [ja.data.independent(key, **sizes) for key in keys]
    made = []
    for dim, arranged, free in ((16, 0, 5), (5, 3, 3)):
        for corpus, ties in zip(corpora, (False, True), strict=True):
            scores = rng.normal(size=12)
            scores = np.round(scores) if ties else scores
            chosen = ja.theory.selection(scores, ja.theory.Scores(np.eye(12), corpus))
            for which in range(arranged + free):
                E, p = rng.normal(size=(12, dim)), rng.normal(size=dim)
                if which < arranged:
                    # Some p has these scores, so the selection can be separated.
                    E += np.outer(scores - E @ p, p) / (p @ p)
                made.append(Instance(corpus, E, scores, chosen))
    return made
