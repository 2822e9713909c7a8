"""The functions of one seed, lifted over lanes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.base import silent
from jaxattn.engine import program


def test_seed_keys_do_not_depend_on_the_other_seeds():
    together, _ = program.seed_keys(range(5))
    alone, _ = program.seed_keys([3])
    np.testing.assert_array_equal(jax.random.key_data(together)[3], jax.random.key_data(alone)[0])


@pytest.mark.slow
def test_seeds_of_a_large_shared_corpus_agree_with_those_of_a_small_one(monkeypatch, study):
    setting = study().base
    data_keys, model_keys = program.seed_keys([0, 1, 2])
    own = program.load(setting, data_keys[:1], silent, {})
    shared = own._replace(shared=True, splits=jax.tree.map(lambda x: x[0], own.splits))
    results = []
    for large in (1 << 60, 0):
        monkeypatch.setattr("jaxattn.data.ragged.LARGE", large)
        jax.clear_caches()
        params = program.start(setting, shared, model_keys, {})
        made = program.program(setting, 1, shared)
        carried = made.begin(params, shared.splits, {}, model_keys)
        carried = made.advance(carried, shared.splits, {}, jnp.int32(7))
        found = made.measure(carried, shared.splits, {})
        metrics = {name: x for every in found.values() for name, x in every.items()}
        results.append((carried.state.params.p, metrics["loss"], metrics["selected_tokens"]))
    jax.clear_caches()
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_runs_of_one_process_share_what_they_make_of_a_setting_but_not_of_own_code(study):
    def made(name="small", **changes):
        setting = study(name, **changes).base
        return program.made_before(setting)

    first = made()
    assert made() is first
    assert made(name="small", seeds=7) is first
    others = [made(dtype="float64"), made(probes={"min_count": 2}), made("flow")]
    assert all(other is not first for other in others)
    model = {"kind": "one_layer", "dim": 16}
    scaled = [made(model=model | {"init": {"p": {"kind": "scaled", "scale": x}}}) for x in (0.5, 2.0, 0.5)]
    assert scaled[0] is scaled[2] is not scaled[1]
    assert made("own") is not made("own")
