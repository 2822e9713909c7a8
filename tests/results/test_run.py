"""What a config holds at a key."""

from jaxattn.results.run import find


def test_what_lies_at_a_dotted_key():
    tree = {"model": {"dim": 8}, "phases": [{"name": "joint", "steps": 3}, {"steps": 4}]}
    assert find(tree, "model.dim") == 8
    assert find(tree, "phases.joint.steps") == 3
    assert find(tree, "phases.1.steps") == 4
    for nowhere in ("model.rank", "phases.other.steps", "phases.2", "model.dim.deeper"):
        assert find(tree, nowhere) is None
