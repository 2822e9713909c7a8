import jax
import numpy as np
import pytest

from jaxattn import dynamics, models
from jaxattn.probes import OneStepEmbeddings


@pytest.mark.parametrize("classes", [2, 3])
def test_distance_of_every_embedding_to_the_law(x64, corpus, show, draw, measure, classes):
    corpus, model = corpus(classes), models.OneLayer(dim=20)
    before, probe = draw(model, corpus), OneStepEmbeddings()
    after = jax.jit(lambda x: dynamics.one_step(x, corpus, step_size=3.0))(before)
    seen = show(model, after, corpus, train=("E",), memory=probe.remember(before))
    seen.phase = dynamics.OneStep(name="step", step_size=3.0)
    found = measure(probe, seen)["embedding_error"]
    # α_s by its definition: signed frequency per sequence, averaged.
    ids, real = map(np.asarray, models.reference.padded_sequences(corpus))
    n, v = len(corpus.targets), np.asarray(before.v)
    alpha = np.zeros((12, 1 if classes == 2 else classes))
    for row, mask, label in zip(ids, real, np.asarray(corpus.targets), strict=True):
        weight = np.array([label / 2]) if classes == 2 else np.eye(classes)[label] - 1 / classes
        for s in row[mask]:
            alpha[s] += weight / mask.sum() / n
    law = alpha @ np.atleast_2d(v.T if classes > 2 else v)
    expected = np.linalg.norm((after.E - before.E) / 3.0 - law, axis=1).max()
    np.testing.assert_allclose(found, expected, rtol=1e-9)
