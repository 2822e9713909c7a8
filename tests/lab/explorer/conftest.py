"""A path that turns to its limit, and the figure of it."""

import numpy as np
import pytest

import jaxattn as ja

V, POINTS = 12, 16


@pytest.fixture(scope="session")
def solved():
    """Return scores, a path and its limit.

    The path is a formula and not a flow, whose program takes seconds to compile: it starts at 70° to the
    limit, and the angle falls like 1/‖p‖.
    """
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, V, 4).tolist() for _ in range(20)]
    corpus = ja.data.from_sequences(sequences, [1, -1] * 10, vocab_size=V)
    start = rng.normal(size=64)
    scores = ja.theory.Scores(rng.normal(size=(V, 64)) / 8, corpus, rng.normal(size=V))
    selection = ja.theory.selection(start, scores)
    limit = ja.theory.max_margin(scores, selection)
    along = limit.p / np.linalg.norm(limit.p)
    off = start - start @ along * along
    norm = np.geomspace(1, 1e3, POINTS)
    angle = np.radians(70 / norm)[:, None]
    p = norm[:, None] * (np.cos(angle) * along + np.sin(angle) * off / np.linalg.norm(off))
    arc_length = np.append(0, np.linalg.norm(np.diff(p, axis=0), axis=1).cumsum())
    path = ja.dynamics.Path(
        p=p,
        arc_length=arc_length,
        norm=norm,
        log_gradient_norm=-norm,
        log_time=np.append(-np.inf, np.linspace(-1, 1e3, POINTS - 1)),
        steps=np.arange(POINTS, dtype=np.int32),
        status=np.int32(ja.dynamics.Stop.NORM),
        accepted=np.int32(POINTS),
        rejected=np.int32(0),
        columns=np.int32(V),
        selection=selection,
    )
    return scores, path, limit


@pytest.fixture(scope="session")
def page(solved):
    names = ["</script><b>", *(f"w{s}" for s in range(1, V))]
    return ja.explore(*solved, sequences=[3, 0, 11], tokens=names, title="A path & its limit")
