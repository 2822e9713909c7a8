"""Settings of all tests: shapes of the public API are checked, and warnings are errors (pyproject.toml)."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import pytest


@pytest.fixture(autouse=True, scope="session")
def compiled_once(tmp_path_factory):
    """Let the tests of one session, also those of several workers, share compiled programs."""
    folder = tmp_path_factory.getbasetemp().parent / "compiled"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Keep the text cache of the user out of the tests."""
    monkeypatch.setenv("JAXATTN_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def x64():
    """Run a test in float64."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def rng():
    """A NumPy generator with a fixed seed."""
    return np.random.default_rng(0)
