"""Compare random studies with the textbook: `python -m tests.textbook NUMBER [FIRST]`.

A study that differs is made smaller for as long as it differs, and written to random_SEED.toml.
"""

import json
import sys
import tempfile
from pathlib import Path

import jaxattn as ja

from . import compare, generate, package


def differences(tables):
    """Return the records that differ from the textbook. Seeds after the first are added to a finished run."""
    with tempfile.TemporaryDirectory() as folder:
        for seeds in range(1, tables["seeds"] + 1):
            study = ja.Study.from_tables(tables | {"seeds": seeds})
            results = package.run(study, Path(folder) / "results")
        _, expected = compare.expected_records(results, tables)
        return compare.differences(package.records_of(results), expected)


def shrunk(tables):
    """Return the smallest study that differs, by removing one part at a time."""
    for candidate in generate.smaller(tables):
        try:
            if differences(candidate):
                return shrunk(candidate)
        except ja.core.errors.InputError:
            continue
    return tables


def main():
    """Run the studies, and exit with status 1 if one differs."""
    number, first = (int(word) for word in (*sys.argv[1:], "0")[:2])
    failed = 0
    for seed in range(first, first + number):
        wrong = differences(generate.study(seed))
        if wrong:
            failed += 1
            tables = shrunk(generate.study(seed))
            ja.Study.from_tables(tables).write(Path(f"random_{seed}.toml"))
            print(f"seed {seed}: {len(wrong)} records differ, such as {next(iter(wrong.items()))}")
            print(json.dumps(tables))
        print(f"{seed + 1 - first} of {number} studies, {failed} differ", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
