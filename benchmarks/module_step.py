"""Compare step times of Flax and Equinox modules with those of custom models for the same functions.

    python benchmarks/module_step.py --out results/benchmarks

The modules of docs/howto/modules.md are adapted by `ja.models.from_linen`, `from_nnx` and `from_equinox`.
The custom model computes tanh(X W + b) w + c from the same named parameters. A step is a step of the
`descent` phase with Adam on all parameters. The module and the custom model run in turn, in compiled loops
with the same number of steps. The output is the median of the ratios of adjacent runs, with quartiles, and
the number of compiled programs for the module.
"""

import argparse
import json
import platform
import re
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxattn as ja
from jaxattn.core.pytrees import get
from jaxattn.lab.engine.programs import Programs, seed_keys
from jaxattn.models.adapters import Adapted

PAGE = Path(__file__).resolve().parent.parent / "docs/howto/modules.md"
SIZES = {"how-to": {"sequences": 64, "width": 16}, "large": {"sequences": 4096, "width": 256}}
SEEDS = 4
# Names of the parameters W, b, w and c (hidden layer and head), and whether matrices have one row per output.
NAMES = {
    "with_linen": (("Dense_0.kernel", "Dense_0.bias", "head.kernel", "head.bias"), False),
    "with_nnx": (("hidden.kernel", "hidden.bias", "head.kernel", "head.bias"), False),
    "with_equinox": (("layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"), True),
}


def page():
    """Return the functions and classes that docs/howto/modules.md defines before its studies, by name."""
    code = re.search(r"```python\n(.*?)\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
    found = {"__name__": "how_to"}
    exec(code[: code.index("def study")], found)
    return found


def custom(of_module, kind):
    """Return a function that builds a custom model with the parameters of a module.

    The outputs are computed by an explicit formula.
    """
    names, is_transposed = NAMES[kind]

    def outputs(params, data):
        W, b, w, c = (get(params, name) for name in names)
        if is_transposed:
            W, w = W.T, w.T
        return (jnp.tanh(data.X @ W + b) @ w + c)[:, 0]

    def model(*, width: int = 16):
        return Adapted(of_module(width=width).init, outputs)

    return model


def stepping(data, model, sequences, width, steps):
    """Return functions that time steps and count compiled programs, and the bytes that the program accesses.

    The first function runs `steps` steps for all seeds, and returns the time in seconds and the final state.
    """
    phase = {"kind": "descent", "name": "all", "train": ["*"], "optimizer": "adam", "step_size": 1e-3}
    study = ja.Study(
        name="step",
        data={"kind": data, "sequences": sequences},
        model={"kind": model, "width": width},
        phases=[phase | {"steps": steps}],
    )
    programs = Programs(study.cells[0].setting)
    keys = seed_keys(range(SEEDS))
    loaded = programs.draw(keys.data, {})
    params = programs.start(loaded, keys.start, {})
    program = programs.phase(0, loaded)
    begin = program.begin(params, loaded.splits, {}, keys.batches)

    def run():
        carried = jax.tree.map(jnp.copy, begin)  # the argument is donated
        start = time.perf_counter()
        carried = jax.block_until_ready(program.advance(carried, loaded.splits, {}, np.int32(steps)))
        return time.perf_counter() - start, carried

    lowered = program.advance.lower(begin, loaded.splits, {}, np.int32(steps))
    return run, program.advance._jitted._cache_size, lowered.compile().cost_analysis()["bytes accessed"]


def measure(kind, sequences, width, steps, repeats):
    """Measure the step time of a module relative to the custom model, and count the compiled programs."""
    found = page()
    module, programs, moved = stepping(found["xor"], found[kind], sequences, width, steps)
    own, _, moved_by_custom = stepping(found["xor"], custom(found[kind], kind), sequences, width, steps)
    ends = [run()[1].state.params for run in (module, own)]
    for one, other in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    ratios, times = [], []
    for number in range(repeats):
        pair = {run: run()[0] for run in ((module, own) if number % 2 else (own, module))}
        ratios.append(pair[module] / pair[own])
        times.append(pair[own] / steps)
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75]).tolist()
    return {
        "ratio": middle,
        "quartiles": [low, high],
        "custom_us": 1e6 * float(np.median(times)),
        "bytes": moved / moved_by_custom,
        "programs": programs(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--out", type=Path, help="folder for module_step.json")
    given = parser.parse_args()
    rows = []
    for size, settings in SIZES.items():
        steps = given.steps if size == "how-to" else max(1, given.steps // 50)
        for kind in NAMES:
            row = measure(kind, **settings, steps=steps, repeats=given.repeats)
            rows.append({"size": size, **settings, "model": kind, **row})
            low, high = row["quartiles"]
            print(
                f"{kind}, {size}: {row['ratio']:.3f} [{low:.3f}, {high:.3f}] times the custom model "
                f"({row['custom_us']:.1f} µs a step), {row['bytes']:.4f} times its bytes, "
                f"{row['programs']} program"
            )
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        versions = {"jax": jax.__version__, "processor": platform.machine(), "seeds": SEEDS}
        (given.out / "module_step.json").write_text(json.dumps(versions | {"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
