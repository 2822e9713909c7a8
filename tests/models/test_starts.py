"""Tests of initial values that replace those of the model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import jaxattn as ja
from jaxattn import Study
from jaxattn.lab.study import seed
from jaxattn.lab.study.import_paths import ImportPaths


@pytest.fixture
def started(tables, tmp_path):
    def make(tokens=(), vocab_size=20, **init):
        model = {"kind": "one_layer", "dim": 4, "init": init}
        data = tables()["data"] | {"vocab_size": vocab_size}
        setting = Study.from_tables(tables(data=data, model=model), ImportPaths(tmp_path)).base
        corpora = jax.eval_shape(setting.data.draw, jax.random.key(0))
        return seed.initial_params(setting, corpora, jax.random.key(5), tokens or setting.data.tokens)

    return make


def test_zero_and_scaled_initialisation_leave_other_parameters_unchanged(started):
    drawn, moved = started(), started(p="zero", E={"scale": 3.0})
    np.testing.assert_array_equal(moved.p, np.zeros(4))
    np.testing.assert_array_equal(moved.E, 3 * drawn.E)
    np.testing.assert_array_equal(moved.v, drawn.v)


def test_array_paths_are_relative_to_the_sweep_file(started, tmp_path):
    E, p = np.random.default_rng(0).normal(size=(2, 20, 4)).astype(np.float32)
    np.save(tmp_path / "E.npy", E)
    save_file({"query": p[0]}, tmp_path / "all.safetensors")
    found = started(E={"file": "E.npy"}, p={"file": "all.safetensors:query"})
    np.testing.assert_array_equal(found.E, E)
    np.testing.assert_array_equal(found.p, p[0])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_rows_are_matched_to_tokens_by_name(started, tmp_path, encoding):
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.save(tmp_path / "E.npy", rows)
    (tmp_path / "words.txt").write_text("dog\ncat\nunused\n", encoding=encoding)
    tokens = ["the", "cat", "sat", "dog"]
    drawn = started(tokens, vocab_size=20)
    found = started([*tokens, *map(str, range(16))], E={"file": "E.npy", "vocabulary": "words.txt"})
    np.testing.assert_array_equal(found.E[1], rows[1])
    np.testing.assert_array_equal(found.E[3], rows[0])
    np.testing.assert_array_equal(found.E[jnp.array([0, 2, 4])], drawn.E[jnp.array([0, 2, 4])])


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({"file": "short.npy"}, r"short.npy: has shape \(3, 4\), but the model requires \(20, 4\)"),
        ({"file": "nosuch.npy"}, "nosuch.npy"),
        (
            {"file": "short.npy", "vocabulary": "two.txt"},
            r"shape \(3, 4\), but the model and vocabulary require \(2, 4\)",
        ),
        ({"file": "short.npy", "vocabulary": "three.txt"}, "contains none of the tokens in the corpus"),
        ({"file": "short.npy", "vocabulary": "none.txt"}, "none.txt: cannot be read "),
    ],
)
def test_files_with_the_wrong_shape_are_rejected(started, tmp_path, start, message):
    np.save(tmp_path / "short.npy", np.zeros((3, 4)))
    (tmp_path / "two.txt").write_text("a\nb\n")
    (tmp_path / "three.txt").write_text("a\nb\nc\n")
    with pytest.raises(ja.InputError, match=message) as caught:
        started(E=start)
    assert "\n" not in str(caught.value)


def test_a_custom_start_sets_its_parameter_in_the_study_dtype(study, x64):
    wanted = study("own")
    corpora = jax.eval_shape(wanted.base.data.draw, jax.random.key(0))
    found = seed.initial_params(wanted.base, corpora, jax.random.key(1), [])
    np.testing.assert_array_equal(found.v, np.full(4, 0.25))
    assert found.v.dtype == jnp.float64
