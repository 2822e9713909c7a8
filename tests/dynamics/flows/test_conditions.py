"""What is not needed is not computed, also where lanes run side by side."""

import time

import jax
import jax.numpy as jnp

from jaxattn.dynamics.flows.conditions import when


def trace_of_power(_, x):
    return jnp.trace(jax.lax.fori_loop(0, 20, lambda _, y: y @ x, x))


def seconds(needed):
    """Time a loop that asks once in each of three turns, as a step does, for two lanes."""
    x = jnp.broadcast_to(jnp.eye(600) / 2, (2, 600, 600))

    @jax.jit
    @jax.vmap
    def lane(x, needed):
        def turn(_, total):
            return total + when(needed, trace_of_power, jnp.zeros(()), x)

        return jax.lax.fori_loop(0, 3, turn, jnp.zeros(()))

    def run():
        begin = time.perf_counter()
        jax.block_until_ready(lane(x, jnp.full(2, needed)))
        return time.perf_counter() - begin

    run()
    return min(run() for _ in range(3))


def test_what_no_lane_needs_takes_no_time():
    assert seconds(False) < seconds(True) / 10


def test_each_lane_gets_what_it_asked_for():
    x, needed = jnp.arange(4.0), jnp.array([True, False, True, False])
    found = jax.vmap(lambda x, needed: when(needed, lambda old, x: old + 10 * x, x, x))(x, needed)
    assert found.tolist() == [0.0, 1.0, 22.0, 3.0]
