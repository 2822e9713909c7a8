import pytest

from jaxattn.claims import Plan


@pytest.fixture(scope="session")
def plan():
    """A scoreboard in the sizes of a test; the corpora of all parts have the same shapes."""
    sizes = {"vocab_size": 12, "relevant": 4, "length": 4, "sequences": 20}
    return Plan(
        base=sizes,
        dim=256,
        law=sizes,
        law_dims=(64, 256),
        several=(2,),
        step_sizes=(0.0,),
        dims=(),
        joint_until_norm=1e3,
    )
