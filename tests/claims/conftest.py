from dataclasses import replace

import pytest

from jaxattn.claims.settings import Plan, Setting

BASE = Setting("assumption1", vocab_size=12, relevant=4, length=4, sequences=20, dim=256, step_size=200.0)


@pytest.fixture(scope="session")
def seeds():
    """Enough for a yes/no claim to hold; the same number everywhere, so that programs are compiled once."""
    return 40


@pytest.fixture(scope="session")
def plan():
    """A scoreboard in the sizes of a test; the corpora of all parts have the same shapes."""
    return Plan(
        base=BASE,
        law=replace(BASE, kind="independent"),
        law_dims=(64, 256),
        several=(2,),
        step_sizes=(0.0,),
        dims=(),
        joint_steps=40,
    )
