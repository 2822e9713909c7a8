"""Scan and snap: attention of the last token."""

import numpy as np
import pytest

from jaxattn.lab.study import seed

pytestmark = pytest.mark.more

TABLE = np.r_[np.ones(10), np.linspace(0.1, 1, 10)] / 15.5  # P(l|n) of common tokens and of those of n
ALONE = ("blocks=null", "figures=[]")


def loop(ids, targets, Y, Z, *, steps, step_size, ratio):
    """Descend on Y and Z with momentum in NumPy, with a loop over sequences and their positions."""
    held_Y, held_Z = np.zeros_like(Y), np.zeros_like(Z)
    for _ in range(steps):
        held_Y, held_Z = 0.9 * held_Y, 0.9 * held_Z
        for (*before, last), target in zip(ids, targets, strict=True):
            q = np.exp(Z[last, before])
            q /= q.sum()
            u = np.zeros(len(Y))
            for token, weight in zip(before, q, strict=True):
                u[token] += weight
            size = np.sqrt(u @ u)
            error = np.exp(u @ Y / size)
            error /= error.sum()
            error[target] -= 1
            held_Y += np.outer(u / size, error) / len(ids)
            back = Y @ error
            pull = (back - u * (u @ back) / size**2) / size
            for token, weight in zip(before, q, strict=True):
                held_Z[last, token] += weight * (pull[token] - q @ pull[before]) / len(ids)
        Y, Z = Y - ratio * step_size * held_Y, Z - step_size * held_Z
    return Y, Z


def measured(Z):
    """Compute entropies and the common part of c_n by a loop over next tokens."""
    found = []
    for n in range(4):
        c = TABLE * np.exp(Z[50 + n // 2, [*range(10), *range(10 + 10 * n, 20 + 10 * n)]])
        c /= c.sum()
        own = c[10:] / c[10:].sum()
        found.append((-(c * np.log(c)).sum(), -(own * np.log(own)).sum(), c[:10].sum()))
    return np.mean(found, axis=0)


def test_training_matches_a_loop(run, read):
    """Statistics of attention before and after ten steps on the same sequences."""
    overrides = (*ALONE, "seeds=1", "phases.train.fresh=null", "data.sequences=20")
    overrides += ("phases.train.steps=10", "phases.train.step_size=2.0", "phases.train.ratio=3.0")
    at, study = run("scan_and_snap", *overrides), read("scan_and_snap", *overrides)
    drawn = study.dataset(0)
    start = seed.initial_params(study.cells[0].setting, drawn, seed.keys(0)[1], ())
    facts = (np.asarray(x) for x in (drawn.train.ids, drawn.train.targets))
    Y, Z = (np.asarray(start[name], float) for name in "YZ")
    _, trained = loop(*facts, Y, Z, steps=10, step_size=2.0, ratio=3.0)
    for step, expected in ((0, measured(Z)), (10, measured(trained))):
        ours = [at(metric, step)[0] for metric in ("entropy", "distinct_entropy", "common")]
        np.testing.assert_allclose(ours, expected, rtol=1e-4)
    assert at("common") < at("common", 0) - 0.1


def test_every_token_is_common_or_specific_to_one_next_token(read):
    """Token frequencies by a loop over sequences."""
    data = read("scan_and_snap", *ALONE, "data.sequences=2000").dataset(0).train
    counts = np.zeros(20)
    for (*before, last), target in zip(np.asarray(data.ids), np.asarray(data.targets), strict=True):
        n = target - 52
        assert 0 <= n < 4
        assert last == 50 + n // 2
        own = [token if token < 10 else token - 10 * n for token in before]
        assert 0 <= min(own) <= max(own) < 20
        counts += np.bincount(own, minlength=20)
    deviation = np.sqrt(TABLE * (1 - TABLE) / counts.sum())
    assert np.all(abs(counts / counts.sum() - TABLE) < 5 * deviation)
