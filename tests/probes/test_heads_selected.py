"""What each of several heads selects, by loops over heads, sequences and tokens."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn import losses, models
from jaxattn.data import token_statistics
from jaxattn.data.splits import Splits
from jaxattn.models.reference import padded_sequences
from jaxattn.probes import HeadsSelected, Seen, Selected


@pytest.fixture
def seen(show, corpus, draw):
    """What a probe sees of three heads, with posterior differences of the tokens."""
    bags, model = corpus(), models.MultiHead(dim=5, heads=3)
    shown = show(model, draw(model, bags), bags)
    shown.data = Splits(bags, token_statistics(bags))
    return shown


def test_each_head_by_loops(x64, seen):
    probe = HeadsSelected(important=0.3, min_count=2)
    first, _, last = seen.params.p
    # Opposite queries select other tokens.
    seen.params = seen.params.replace(p=jnp.stack([first, -first, last]))
    found = probe.measure(seen)
    params, bags = seen.params, seen.data.train
    important = np.asarray(seen.data.tokens.important(0.3, 2))
    assert 0 < important.sum() < len(important)
    ids, mask = (np.asarray(x) for x in padded_sequences(bags))
    selects, mass = np.zeros((3, len(ids)), bool), np.zeros((3, len(ids)))
    for h, p in enumerate(np.asarray(params.p)):
        scores = np.asarray(params.E) @ p
        for n, (row, real) in enumerate(zip(ids, mask, strict=True)):
            tokens = row[real]
            weight = np.exp(scores[tokens] - scores[tokens].max())
            mass[h, n] = (weight * important[tokens]).sum() / weight.sum()
            top = {s for s in tokens if scores[s] == scores[tokens].max()}
            selects[h, n] = all(important[s] for s in top) and top != set(tokens)
    np.testing.assert_allclose(found["head_mass"], mass.mean(axis=1), rtol=1e-12)
    np.testing.assert_allclose(found["head_selected"], selects.mean(axis=1))
    assert selects.all(axis=0).sum() < selects.any(axis=0).sum()
    np.testing.assert_allclose(found["any_head_selected"], selects.any(axis=0).mean())
    np.testing.assert_allclose(found["all_heads_selected"], selects.all(axis=0).mean())
    assert found.keys() == probe.labels.keys()


def test_equal_heads_are_one_query(x64, seen):
    """Three times the query of the one-layer model measure what it does."""
    p, v = seen.params.p[0], seen.params.v[0]
    seen.params = seen.params.replace(p=jnp.stack([p] * 3), v=jnp.stack([v] * 3))
    settings = {"important": 0.3, "min_count": 2}
    of_heads = HeadsSelected(**settings).measure(seen)
    one = Seen(models.one_layer.Params(E=seen.params.E, p=p, v=v), _task(seen), seen.phase)
    alone = Selected(**settings).measure(one)
    np.testing.assert_allclose(of_heads["head_mass"], [alone["important_mass"]] * 3, rtol=1e-12)
    for name in ("any_head_selected", "all_heads_selected"):
        np.testing.assert_array_equal(of_heads[name], alone["important_selected"])


def _task(seen):
    from jaxattn.base import Task

    return Task(models.OneLayer(dim=5), seen.loss, seen.data)


def test_no_important_token_is_no_number(x64, seen):
    found = HeadsSelected(important=1.0, min_count=1_000).measure(seen)
    assert all(np.isnan(x).all() for x in found.values())


def test_it_wants_heads(applies):
    assert applies(HeadsSelected(), models.MultiHead(dim=5, heads=2), losses.DEFAULT, ("p",))
    assert not applies(HeadsSelected(), models.OneLayer(dim=5), losses.DEFAULT, ("p",))
