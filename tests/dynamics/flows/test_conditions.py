"""Conditional computation, also under vmap."""

import re

import jax
import jax.numpy as jnp

from jaxattn.dynamics.flows.conditions import cond_under_vmap


def trace_of_power(_, x):
    return jnp.trace(x @ x @ x)


def loops_around(text, operation):
    """Return the smallest number of loops that contain an operation of a compiled program."""
    computations, name = {}, None
    for line in text.splitlines():
        if begun := re.match(r"(ENTRY )?%?([\w.-]+) .*{$", line):
            name = "entry" if begun[1] else begun[2]
            computations[name] = []
        elif name:
            computations[name].append(line)

    def depths(name, depth):
        for line in computations[name]:
            if f" {operation}(" in line:
                yield depth
            for kind, called in re.findall(r"(body|condition|calls|to_apply)=%?([\w.-]+)", line):
                yield from depths(called, depth + (kind == "body"))

    return min(depths("entry", 0))


def test_unneeded_work_is_not_hoisted_out_of_the_loop():
    x = jnp.broadcast_to(jnp.eye(60) / 2, (2, 60, 60))

    def loops(ask):
        runs = jax.jit(jax.vmap(lambda x, needed: ask(needed, trace_of_power, jnp.zeros(()), x)))
        return loops_around(runs.lower(x, jnp.zeros(2, bool)).compile().as_text(), "dot")

    assert loops(cond_under_vmap) == 1
    assert loops(lambda needed, compute, old, x: jnp.where(needed, compute(old, x), old)) == 0


def test_vmapped_conditions_are_independent():
    x, needed = jnp.arange(4.0), jnp.array([True, False, True, False])
    found = jax.vmap(lambda x, needed: cond_under_vmap(needed, lambda old, x: old + 10 * x, x, x))(x, needed)
    assert found.tolist() == [0.0, 1.0, 22.0, 3.0]
