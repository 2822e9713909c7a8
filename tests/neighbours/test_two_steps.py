"""Two steps fit noisy labels and generalise to clean ones."""

import numpy as np
import pytest

pytestmark = pytest.mark.more


def two_steps(X, y, step_size):
    """Descend on p and v from 0, twice, with a loop over sequences."""
    p = v = np.zeros(X.shape[-1])
    for _ in range(2):
        slope_p, slope_v = np.zeros_like(p), np.zeros_like(v)
        for x, label in zip(X, y, strict=True):
            q = np.exp(x @ p - (x @ p).max())
            q /= q.sum()
            pull = -label / (1 + np.exp(label * (q @ x @ v))) / len(y)
            slope_p += pull * (q * (x @ v - q @ x @ v)) @ x
            slope_v += pull * q @ x
        p, v = p - step_size * slope_p, v - step_size * slope_v
    return p, v


def accuracy(X, y, p, v):
    q = np.exp(X @ p - (X @ p).max(axis=1, keepdims=True))
    return (np.sign((q * (X @ v)).sum(axis=1)) == y).mean()


SMALL = ("seeds=3", "data.dim=1200", "axes.data.ratio=[0.03, 0.17, 0.6]", "data.test_sequences=100")


def test_accuracies_match_a_loop(run, read):
    """Training and test accuracy of each cell; both are high at an intermediate ratio."""
    block = {"blocks.n.zip.data.sequences": 50, "blocks.d.zip.data.dim": 1200}
    sizes = [f"{key}=[{value}]" for key, value in block.items()]
    sizes += [f"blocks.{name}.zip.phases.train.step_size=[0.03]" for name in "nd"]
    at, study = run("two_steps", *SMALL, *sizes), read("two_steps", *SMALL, *sizes)
    for cell in range(3):
        data = study.dataset(1, cell)
        X, y = (np.asarray(x, float) for x in (data.train.X, data.train.targets))
        p, v = two_steps(X, y, 0.03)
        assert at("train_accuracy", cell=cell)[1] == np.float32(accuracy(X, y, p, v))
        test = np.asarray(data.test.X, float), np.asarray(data.test.targets)
        assert abs(at("test_accuracy", cell=cell)[1] - accuracy(*test, p, v)) < 1e-6
    assert at("test_accuracy", cell=0).mean() < 0.9
    assert (at("train_accuracy", cell=1) == 1).all()
    assert at("test_accuracy", cell=1).mean() > 0.95
    assert at("train_accuracy", cell=2).mean() < 1
