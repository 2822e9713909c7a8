"""Run all attacks in full: `python tests/robustness [--only kills] [--share 0.1]`."""

import argparse
import importlib
import sys
import time

FULL = {
    "forged": 105,
    "kills": 300,
    "damages": 1000,
    "swaps": 300,
    "buckets": 170,
    "sweep_files": 5000,
    "corpora": 500,
    "weights": 500,
}


def main() -> None:
    """Run the attacks and print their outcomes."""
    parser = argparse.ArgumentParser(description="Attack the package; stop at the first forbidden outcome.")
    parser.add_argument("--only", nargs="*", choices=list(FULL), default=list(FULL))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="fraction of the full number of attacks")
    parser.add_argument(
        "--longest", type=float, default=5.0, help="longest silence in seconds; increase it on a busy machine"
    )
    given = parser.parse_args()
    if not 0 < given.share <= 1:
        parser.error(f"--share {given.share}: give a share above 0, at most 1")
    print("| attack | outcome | how often |\n|---|---|---|")
    for name in given.only:
        count, begin = max(1, round(given.share * FULL[name])), time.monotonic()
        module = importlib.import_module(name)
        module.LONGEST_S = given.longest
        found = module.attack(count, given.seed)
        for outcome, times in found.items():
            print(f"| {name} | {outcome} | {times} |", flush=True)
        print(f"{name}: {count} in {time.monotonic() - begin:.0f} s, seed {given.seed}", file=sys.stderr)


if __name__ == "__main__":
    main()
