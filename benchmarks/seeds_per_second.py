"""Time a synthetic study with many seeds, and compare it with loops, vmapped textbook code and PyTorch.

    python benchmarks/seeds_per_second.py --out results/benchmarks

For every seed, a corpus and parameters are sampled, and training takes one gradient step on E and then many
steps on p. Rows are compiled beforehand and measured in turn in one process, so that a drift in speed does
not affect the ratios:

- jaxattn: all seeds vmapped in the programs of `jaxattn run`, with a probe after each phase;
- loop, token space: a Python loop over seeds and steps with the jitted step of jaxattn;
- loop, textbook: the same loop with a jitted step of textbook code, which gathers E[x];
- vmap, textbook: the textbook code under jit(vmap(fori_loop)), in batches of 1, 4 and 16 seeds;
- PyTorch: an nn.Embedding model, trained seed by seed (requires the extra `torch`).

Slow rows run a few seeds and `--slow-steps` steps of the second phase, and their times are extrapolated.
"""

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxattn as ja
from jaxattn.lab.engine import devices
from jaxattn.lab.engine.programs import Programs, seed_keys

STUDY = ja.Study(
    name="seeds-per-second",
    data=ja.data.Independent(vocab_size=200, relevant=40, length=16, sequences=512),
    model=ja.models.OneLayer(dim=512),
    phases=[
        ja.dynamics.OneStep(name="embed", step_size=1000.0),
        ja.dynamics.Descent(name="query", train=("p",), optimizer="sgd", step_size=1.0, steps=500),
    ],
)
BATCHES = (1, 4, 16)


def clock(function):
    """Call a function and return the time in seconds until its results are ready."""
    begin = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - begin


def ours(seeds):
    """Return a function that runs all seeds under vmap, as a study does."""
    made = Programs(STUDY.base)
    data_keys, model_keys, _ = seed_keys(list(range(seeds)))
    drawn = made.draw(data_keys, {})
    draw, start = made.drawing, made.starting(drawn)
    programs = [made.phase(index, drawn) for index in range(len(STUDY.base.phases))]

    def whole():
        corpora, params, measured = draw(data_keys, {}), start(model_keys, {}), []
        for made in programs:
            carried = made.begin(params, corpora, {}, model_keys)
            carried = made.advance(carried, corpora, {}, jnp.int32(made.probe_steps[-1]))
            measured.append(made.measure(carried, corpora, {}))
            params = carried.state.params
        return params, measured

    return whole


def drawn(seeds):
    """Sample parameters and a corpus for each seed, and return them and the padded sequences."""
    data_keys, model_keys, _ = seed_keys(list(range(seeds)))
    programs = Programs(STUDY.base)
    loaded = programs.draw(data_keys, {})
    params = programs.start(loaded, model_keys, {})
    each = [jax.tree.map(lambda x, k=k: x[k], (params, loaded.splits.train)) for k in range(seeds)]
    sequences = [ja.models.reference.padded_sequences(corpus) for _, corpus in each]
    return each, [tuple(map(jnp.asarray, pair)) for pair in sequences]


def token_loop(each, steps, embed, query):
    """Return a function that runs the jitted step of jaxattn in a Python loop over seeds and steps."""
    first = jax.jit(lambda params, corpus: ja.dynamics.one_step(params, corpus, step_size=embed))
    step = jax.jit(lambda params, corpus: ja.dynamics.one_step(params, corpus, step_size=query, train=("p",)))

    def whole():
        for params, corpus in each:
            moved = first(params, corpus)
            for _ in range(steps):
                moved = step(moved, corpus)
            jax.block_until_ready(moved)

    return whole


def textbook_loss(params, ids, mask, labels):
    logits = ja.models.reference.outputs(params, ids, mask)
    return ja.losses.logistic(logits, labels).mean()


def textbook_steps(embed, query):
    def first(params, *data):
        return params.replace(E=params.E - embed * jax.grad(textbook_loss)(params, *data).E)

    def step(params, *data):
        gradient = jax.grad(lambda p: textbook_loss(params.replace(p=p), *data))(params.p)
        return params.replace(p=params.p - query * gradient)

    return first, step


def textbook_loop(each, sequences, steps, embed, query):
    """Return a function that runs a textbook step in a Python loop over seeds and steps."""
    first, step = map(jax.jit, textbook_steps(embed, query))

    def whole():
        for (params, corpus), (ids, mask) in zip(each, sequences, strict=True):
            moved = first(params, ids, mask, corpus.targets)
            for _ in range(steps):
                moved = step(moved, ids, mask, corpus.targets)
            jax.block_until_ready(moved)

    return whole


def textbook_vmap(each, sequences, steps, embed, query):
    """Return a function that runs textbook code for all seeds in one vmapped program."""
    first, step = textbook_steps(embed, query)

    def train(params, *data):
        return jax.lax.fori_loop(0, steps, lambda _, x: step(x, *data), first(params, *data))

    stacked = jax.tree.map(lambda *x: jnp.stack(x), *[params for params, _ in each])
    ids, mask = (jnp.stack(x) for x in zip(*sequences, strict=True))
    labels = jnp.stack([corpus.targets for _, corpus in each])
    compiled = jax.jit(jax.vmap(train))
    return lambda: compiled(stacked, ids, mask, labels)


def torch_loop(each, sequences, steps, embed, query):
    """Return a function that trains an idiomatic PyTorch model for each seed, or None without PyTorch."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(os.cpu_count() or 1)

    def whole():
        for (params, corpus), (ids, mask) in zip(each, sequences, strict=True):
            tokens, real = torch.as_tensor(np.array(ids)), torch.as_tensor(np.array(mask))
            labels = torch.as_tensor(np.array(corpus.targets), dtype=torch.float32)
            embedding = torch.nn.Embedding.from_pretrained(torch.as_tensor(np.array(params.E)), freeze=False)
            p = torch.nn.Parameter(torch.as_tensor(np.array(params.p)))
            v = torch.as_tensor(np.array(params.v))

            def loss(embedding=embedding, tokens=tokens, real=real, p=p, v=v, labels=labels):
                embedded = embedding(tokens)
                attention = torch.softmax((embedded @ p).masked_fill(~real, -torch.inf), dim=1)
                logits = torch.einsum("nt,ntd->nd", attention, embedded) @ v
                return torch.nn.functional.softplus(-labels * logits).mean()

            optimizer = torch.optim.SGD([embedding.weight], lr=embed)
            loss().backward()
            optimizer.step()
            embedding.weight.requires_grad_(False)
            optimizer = torch.optim.SGD([p], lr=query)
            for _ in range(steps):
                optimizer.zero_grad()
                loss().backward()
                optimizer.step()

    return whole


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=256)
    parser.add_argument("--slow-seeds", type=int, default=2, help="number of seeds of slow rows")
    parser.add_argument("--slow-steps", type=int, default=50, help="number of steps of slow rows")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None, help="folder for seeds_per_second.json")
    options = parser.parse_args()
    devices.use_all_cores()
    jax.config.update("jax_default_matmul_precision", "highest")
    first, second = STUDY.base.phases
    embed, query = first.step_size, second.step_size
    steps, slow = second.steps, options.slow_steps
    each, sequences = drawn(max(options.slow_seeds, *BATCHES))
    few, some = each[: options.slow_seeds], sequences[: options.slow_seeds]
    arguments = (slow, embed, query)
    # Each row contains the function, the number of seeds and the number of timed steps. The time of the
    # second phase is extrapolated from these steps.
    rows = {
        "jaxattn": (ours(options.seeds), options.seeds, steps),
        "loop, token space": (token_loop(few, steps, embed, query), len(few), steps),
        "loop, textbook": (textbook_loop(few, some, *arguments), len(few), slow),
    }
    for batch in BATCHES:
        function = textbook_vmap(each[:batch], sequences[:batch], *arguments)
        rows[f"vmap, textbook, {batch} seeds"] = (function, batch, slow)
    if (function := torch_loop(few, some, *arguments)) is not None:
        rows["PyTorch"] = (function, len(few), slow)
    times = {name: [] for name in rows}
    for function, _, _ in rows.values():
        clock(function)
    for _ in range(options.repeats):
        for name, (function, seeds, taken) in rows.items():
            times[name].append(clock(function) / seeds * steps / taken)
    medians = {name: statistics.median(found) for name, found in times.items()}
    result = {
        "seeds": options.seeds,
        "sweep": STUDY.config,
        "seconds_per_seed": medians,
        "seeds_per_second": {name: 1 / median for name, median in medians.items()},
        "times_slower": {name: median / medians["jaxattn"] for name, median in medians.items()},
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "jax": jax.__version__,
    }
    print(f"{'what':28} {'ms a seed':>10} {'seeds/s':>9} {'× slower':>9}")
    for name, median in medians.items():
        print(f"{name:28} {1e3 * median:10.2f} {1 / median:9.2f} {median / medians['jaxattn']:9.1f}")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        kind = "" if jax.default_backend() == "cpu" else f"_{jax.devices()[0].device_kind.replace(' ', '_')}"
        path = options.out / f"seeds_per_second{kind}.json"
        path.write_text(json.dumps(result, indent=2) + "\n")
        print(path)


if __name__ == "__main__":
    main()
