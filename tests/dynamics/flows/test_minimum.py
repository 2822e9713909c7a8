import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.dynamics.flows.coordinates import coordinates
from jaxattn.dynamics.flows.joint_coordinates import joint_coordinates
from jaxattn.dynamics.flows.joint_minimum import settles_jointly
from jaxattn.dynamics.flows.minimum import settles

pytestmark = pytest.mark.usefixtures("x64")


def repeated(**counts):
    """Build a corpus over tokens 0 and 1 from counts such as ab_plus=2: two sequences [0, 1] with label 1."""
    names = {"a": [0], "b": [1], "ab": [0, 1]}
    sequences, labels = [], []
    for name, count in counts.items():
        tokens, _, sign = name.partition("_")
        sequences += [names[tokens]] * count
        labels += [1 if sign == "plus" else -1] * count
    return ja.data.from_sequences(sequences, labels, vocab_size=2)


# The minimum of the loss is at f_X = log(n⁺/n⁻) for each of the three bags.
SEPARATE = {"a_plus": 1, "a_minus": 3, "b_plus": 3, "b_minus": 1, "ab_plus": 2, "ab_minus": 1}


def minimum():
    """Return v and p in closed form: values -log 3 and log 3, and attention q of token 1 with f = log 2."""
    v = np.log(3.0) * np.array([-1.0, 1.0])
    q = (1 + np.log(2) / np.log(3)) / 2
    half = np.log(q / (1 - q)) / 2
    return np.array([-half, half]), v


@pytest.mark.more
def test_joint_flow_converges_to_a_strict_minimum_and_says_so():
    p, v = minimum()
    params = ja.models.one_layer.Params(E=jnp.eye(2), p=jnp.array([0.1, -0.1]), v=jnp.array([0.2, 0.3]))
    path = ja.dynamics.joint_flow(params, repeated(**SEPARATE), points=8, until_norm=1e4)
    assert path.stop == "balanced"
    np.testing.assert_allclose(path.p[-1], p, atol=1e-5)
    np.testing.assert_allclose(path.v[-1] * jnp.exp(path.log_v_norm[-1]), v, atol=1e-5)


@pytest.mark.parametrize(("away", "expected"), [(0.0, True), (1e-4, True), (0.3, False)])
@pytest.mark.more
def test_a_point_settles_only_near_the_minimum(away, expected):
    p, v = minimum()
    flow = joint_coordinates(
        jnp.eye(2), jnp.asarray(p) + away * np.array([1.0, -1.0]), jnp.asarray(v), repeated(**SEPARATE), 1e8
    )
    assert bool(settles_jointly(flow, flow.zero)) == expected


@pytest.mark.more
def test_directions_without_any_force_do_not_count():
    """p may have any component along (1, 1), and a third embedding that no score difference contains."""
    p, v = minimum()
    E = jnp.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    shifted = jnp.asarray(np.append(p, 0.0)) + 5.0 * jnp.array([1.0, 1.0, 3.0])
    corpus = repeated(**SEPARATE)
    flow = coordinates(E, shifted, jnp.asarray(v), corpus)
    assert bool(settles(flow, flow.zero))


def test_a_force_outwards_at_the_size_of_rounding_is_no_balance():
    """All sequences prefer token 1, so p grows for ever; at a gap of 40 its force is e^(-40)."""
    corpus = ja.data.from_sequences([[0, 1], [0, 1], [0], [0]], [1, 1, 1, -1], vocab_size=2)

    @jax.jit
    def settled(p):
        flow = coordinates(jnp.eye(2), p, jnp.array([0.0, 0.5]), corpus)
        return settles(flow, flow.zero)

    assert not settled(jnp.array([-20.0, 20.0]))


@pytest.mark.more
def test_flat_minimum_is_unresolved():
    """Each bag has both labels equally often, so v tends to 0, where the loss does not depend on p."""
    params = ja.models.one_layer.Params(E=jnp.eye(2), p=jnp.array([0.1, -0.1]), v=jnp.array([0.2, 0.3]))
    path = ja.dynamics.joint_flow(params, repeated(ab_plus=2, ab_minus=2, a_plus=3, a_minus=3), points=8)
    assert path.stop in ("unresolved", "stationary")
    assert path.norm[-1] < 10
