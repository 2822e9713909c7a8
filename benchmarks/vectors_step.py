"""Compare the time of a gradient step on real-valued tokens with two batched XLA products on the same array.

    python benchmarks/vectors_step.py --out results/benchmarks

The model is

    f(X) = Σ_t q_t x_t·v,   q = softmax over t of x_t·p, or of x_t·(W z).

A step of gradient descent on p, on p and v, or on W is compared with one product of each kind:
a_nt = x_nt·u_n and h_n = Σ_t q_nt x_nt. A step on W also contains two matrix products, of z and W and of z
and ∂L/∂(W z), which are timed too. Steps and products are compiled loops with the same number of rounds,
which run in turn. The output is the median of the ratios of adjacent runs, with quartiles.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxattn as ja
from jaxattn.data import Vectors

SIZE = {"sequences": 2000, "length": 16, "dim": 512}


class Params(NamedTuple):
    """Query p, matrix W between keys and queries, and head v."""

    p: jax.Array
    W: jax.Array
    v: jax.Array


def by_query(params, data):
    """Compute f for each sequence with the query p."""
    return (jax.nn.softmax(data.dot(params.p), axis=1) * data.dot(params.v)).sum(axis=1)


def by_matrix(params, data):
    """Compute f for each sequence with the query W z, where z depends on the sequence."""
    return (jax.nn.softmax(data.dot(data.z @ params.W.T), axis=1) * data.dot(params.v)).sum(axis=1)


class Queries(ja.Model):
    """Model on `Vectors` whose outputs are computed by the function `read`."""

    takes = Vectors
    read: Callable

    def outputs(self, params, data):
        """Compute f for each sequence."""
        return self.read(params, data)


def draw(sequences, length, dim):
    """Sample tokens, queries and labels."""
    tokens, queries, labels = jax.random.split(jax.random.key(0), 3)
    X = jax.random.normal(tokens, (sequences, length, dim)) / dim**0.5
    z = jax.random.normal(queries, (sequences, dim)) / dim**0.5
    y = jax.random.rademacher(labels, (sequences,), jnp.int32)
    return Vectors(targets=y, X=X, z=z, classes=2)


def stepping(data, outputs, train, rounds):
    """Return a function that takes `rounds` gradient steps."""
    sgd = ja.dynamics.Descent(name="sgd", train=train, optimizer="sgd", step_size=0.1, steps=rounds)
    dim, task = data.dim, ja.dynamics.Task(Queries(read=outputs), data=data)
    params = Params(jnp.zeros(dim), jnp.zeros((dim, dim)), jnp.ones(dim) / dim**0.5)
    return lambda: jax.block_until_ready(ja.dynamics.run(sgd, task, params))


def looped(once, begin, data, rounds):
    """Return a function that iterates x ← once(x, data) for `rounds` rounds, starting from x = `begin`."""
    run = jax.jit(lambda x, data: jax.lax.fori_loop(0, rounds, lambda _, x: once(x, data), x))
    return lambda: jax.block_until_ready(run(begin, data))


def batched(u, data):
    """Compute the two batched products of a step, with `u` as the queries."""
    a = jnp.einsum("ntd,nd->nt", data.X, u)
    return jnp.einsum("nt,ntd->nd", a, data.X) / data.dim


def dense(W, data):
    """Compute the two matrix products of a step on W."""
    return (data.z @ W.T).T @ data.z / data.dim


def timed(run):
    """Call a function and return the time in seconds."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, help="folder for vectors_step.json")
    given = parser.parse_args()
    data = draw(**SIZE)
    rounds = given.rounds
    runs = {
        "batched": looped(batched, data.z, data, rounds),
        "dense": looped(dense, jnp.eye(data.dim), data, rounds),
        "p": stepping(data, by_query, ("p",), rounds),
        "p and v": stepping(data, by_query, ("p", "v"), rounds),
        "W": stepping(data, by_matrix, ("W",), rounds),
    }
    for run in runs.values():
        run()
    found = {name: [] for name in runs}
    for _ in range(given.repeats):
        for name, run in runs.items():
            found[name].append(timed(run) / rounds)
    times = {name: np.array(each) for name, each in found.items()}
    floors = {"two batched products": times["batched"]}
    floors["those and two with W"] = times["batched"] + times["dense"]
    rows = []
    for train, floor in (("p", 0), ("p and v", 0), ("W", 0), ("W", 1)):
        name = list(floors)[floor]
        low, middle, high = np.quantile(times[train] / floors[name], [0.25, 0.5, 0.75]).tolist()
        rows.append({"train": train, "against": name, "ratio": middle, "quartiles": [low, high]})
        print(f"a step on {train}: {middle:.2f} [{low:.2f}, {high:.2f}] times {name}")
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        found = {"jax": jax.__version__, "processor": platform.machine(), **SIZE, "rows": rows}
        (given.out / "vectors_step.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
