import pytest
from chips.targets import read_target

import jaxattn as ja


@pytest.mark.parametrize(
    ("name", "platform", "topology"),
    [
        ("h200", "gpu", "1x1x1"),
        ("A100:4", "gpu", "1x1x4"),
        ("v5e", "tpu", "v5e:1x1"),
        ("v5e:2x2", "tpu", "v5e:2x2"),
        ("v4", "tpu", "v4:2x2x1"),
    ],
)
def test_target_names_are_parsed(name, platform, topology):
    target = read_target(name)
    assert (target.name, target.platform, target.topology) == (name, platform, topology)
    assert bool(target.config) == (platform == "gpu")


@pytest.mark.parametrize("name", ["", "b300", "h200:0", "h200:2x2", "v5e:4", "v4:2x2", "v5e:0x1"])
def test_unknown_target_error_lists_known_targets(name):
    with pytest.raises(ja.InputError, match=r"is unknown; use a100, h100, h200 .* v4, v5e, v5p, v6e"):
        read_target(name)
