"""Computations in float64 run on the host's CPU if the devices lack float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.core import backend
from jaxattn.lab.engine import devices


def are_chosen():
    """Return True if other devices than the default ones are selected."""
    return backend._CHOSEN.get() is not None


@pytest.fixture
def lacking(monkeypatch):
    """Let this CPU be a device without float64 whose host is a CPU, and count transfers between them."""
    calls = []
    moved = devices.moved

    def counted(arguments, in_axes, shared):
        calls.append(are_chosen())
        return moved(arguments, in_axes, shared)

    monkeypatch.setattr(backend, "WITHOUT_FLOAT64", ("cpu",))
    monkeypatch.setattr(devices, "moved", counted)
    return calls


@pytest.mark.more
def test_float64_phase_on_the_host_gives_the_same_result(
    tmp_path, go, study, assert_same, lacking, monkeypatch
):
    wanted = study("flow", dtype="float32", seeds=2)
    assert not go(tmp_path / "host", wanted)[0].failures
    # Programs on both devices ran, each after its arguments were transferred.
    assert set(lacking) == {True, False}
    monkeypatch.undo()
    before = len(lacking)
    assert not go(tmp_path / "here", wanted)[0].failures
    assert len(lacking) == before
    assert_same(tmp_path / "here", tmp_path / "host")


@pytest.mark.more
def test_float64_study_runs_on_the_host(tmp_path, go, study, assert_same, lacking, flow_run):
    assert not go(tmp_path / "host", study("flow"))[0].failures
    assert set(lacking) == {True}
    assert_same(tmp_path / "host", flow_run)


def test_float64_computations_move_to_the_host_and_back(lacking):
    assert not are_chosen()
    with backend.float64():
        assert are_chosen()
        assert backend.local_devices() == tuple(jax.local_devices(backend="cpu"))
        assert jnp.ones(3, jnp.float64).dtype == np.float64
    assert not are_chosen()
    with backend.precision("float32"):
        assert not are_chosen()
        assert jnp.ones(3).dtype == np.float32
