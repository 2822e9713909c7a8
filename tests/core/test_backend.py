"""JAX options of the environment change neither the numbers nor the programs of a study."""

import importlib.util
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.core import backend

HOSTILE = {
    "default_prng_impl": "rbg",
    "threefry_partitionable": False,
    "numpy_dtype_promotion": "strict",
    "numpy_rank_promotion": "raise",
    "legacy_prng_key": "error",
    "debug_nans": True,
    "transfer_guard": "disallow",
    "softmax_custom_jvp": True,
}


@pytest.fixture
def hostile():
    """JAX options that change random numbers, or that raise errors in correct programs."""
    before = jax.config.jax_random_seed_offset
    with ExitStack() as stack:
        for name, value in HOSTILE.items():
            stack.enter_context(getattr(jax, name)(value))
        jax.config.update("jax_random_seed_offset", 7)
        yield
        jax.config.update("jax_random_seed_offset", before)


def numbers():
    key = jax.random.fold_in(jax.random.key(3), 1)
    drawn = jax.random.normal(key, (5,)) + jax.random.gumbel(key, (2, 5))
    return np.asarray(drawn * jnp.arange(5) / jnp.zeros(()))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_user_jax_options_do_not_change_results(dtype, hostile):
    with ExitStack() as stack:
        for name in HOSTILE:
            stack.enter_context(getattr(jax, name)(backend.PINNED[f"jax_{name}"]))
        jax.config.update("jax_random_seed_offset", 0)
        stack.enter_context(jax.enable_x64(dtype == "float64"))
        expected = numbers()
    jax.config.update("jax_random_seed_offset", 7)
    with backend.precision(dtype):
        np.testing.assert_array_equal(numbers(), expected)
    assert expected.dtype == dtype


def test_user_jax_options_are_restored(hostile):
    with backend.pinned():
        assert jax.config.jax_default_prng_impl == "threefry2x32"
    assert jax.config.jax_default_prng_impl == "rbg"
    assert jax.config.jax_random_seed_offset == 7


def test_every_pinned_option_exists_in_jax():
    assert set(backend.PINNED) <= set(jax.config.values)


STARTS = """
import sys
from pathlib import Path
import jaxattn as ja
from jaxattn.lab import cli
from jaxattn.lab.engine.machine import examine
sweep, folder = sys.argv[1:]
for start in (ja.Study.read(sweep).run, ja.Study.read(sweep).plan, ja.Study.read(sweep).dataset):
    try:
        start()
    except ja.InputError as error:
        print(error)
print(*(finding.found for finding in examine(Path(folder)) if finding.state == "broken"), sep="\\n")
sys.argv = ["jaxattn", "run", sweep]
cli.main()
"""


@pytest.mark.parametrize(
    ("platform", "words"),
    [
        ("nonsense", "'nonsense' is not in the list of known backends"),
        ("cuda", '(not installed); unset JAX_PLATFORMS, or set it to "cuda,cpu", or install the plugin with'),
    ],
)
@pytest.mark.more
def test_platform_that_cannot_be_started_is_reported_in_one_line(platform, words, tmp_path):
    if platform == "cuda" and importlib.util.find_spec("jax_plugins"):
        pytest.skip("a plugin is installed")
    sweep = Path(__file__).parents[1] / "sweeps" / "small.toml"
    ended = subprocess.run(
        [sys.executable, "-c", STARTS, str(sweep), str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"JAX_PLATFORMS": platform, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    lines = [*ended.stdout.splitlines(), ended.stderr.strip().removeprefix("jaxattn: ")]
    assert len(lines) == 5
    assert len(set(lines)) == 1
    assert lines[0].startswith(f"JAX_PLATFORMS: JAX cannot start '{platform}' (")
    assert words in lines[0]
    assert "unset JAX_PLATFORMS" in lines[0]
