"""Single-location regression: the location is found."""

import numpy as np
import pytest

pytestmark = pytest.mark.more


def test_training_recovers_the_single_location(run):
    """|ν| converges to 1, and |κ| approaches it as λ decreases; smaller than the published setting."""
    overrides = ("phases.train.steps=2500", "phases.train.fresh=16", "phases.train.step_size=0.01")
    small = ("data.dim=40", "data.length=5", "model.decay=4e-3", "seeds=2")
    at = run("single_location", *overrides, *small)
    assert (at("kappa", 0) < 0.5).all()
    assert (at("kappa") > 0.85).all()
    assert (at("nu") > 0.97).all()
    assert (at("test_loss") < at("test_loss", 0) / 2).all()


def test_targets_are_linear_in_the_located_token(read):
    data = read("single_location", "data.noise=0.0").dataset(1).train
    X, y = np.asarray(data.X), np.asarray(data.targets)
    place = X[:, :, 0].argmax(axis=1)  # √(d/2) = 6.3 is far above the noise
    np.testing.assert_allclose(y, X[np.arange(len(y)), place, 1], rtol=1e-5)
    assert np.isfinite(X).all()
