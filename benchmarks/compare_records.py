"""Compare every published number of the books with the records of an earlier git revision.

    python benchmarks/compare_records.py c0845d37

The earlier records have one entry per number, in the same order: its value, interval, seeds, criterion and
basis, from which the verdict followed. A number is the same if its value, interval, seeds and criterion are
equal, and its verdict is the translation of the earlier one. Other differences must be in `EXPLAINED`.
The script prints how many numbers are the same and how many differ for each reason, and fails if a number is
lost, added, or differs for no reason.
"""

import argparse
import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

from jaxattn.lab.books.record import read_record
from jaxattn.lab.results.judge import ENOUGH_SEEDS

ROOT = Path(__file__).parents[1]
PUBLISHED = "results/published"
BOOKS = ("paper", "claims", "neighbours", "findings")
BASES = {"promised": "theory", "beyond": "beyond", "published": "published"}
# Earlier verdicts by basis: inside the criterion, outside it, neither, and without a criterion.
WORDS = {
    "promised": ("holds", "fails", "undecided", "undecided"),
    "beyond": ("holds there too", "does not hold", "undecided", "measured"),
    "published": ("agrees", "differs", "cannot tell", "measured"),
}
TRANSLATED = {
    "holds": "agrees",
    "holds there too": "agrees",
    "agrees": "agrees",
    "fails": "differs",
    "does not hold": "differs",
    "holds for some": "differs",
    "differs": "differs",
    "undecided": "inconclusive",
    "cannot tell": "inconclusive",
    "measured": "",
}
EXPLAINED = {
    "rounding": "the item was run again by this version, which rounds differently in float32 (1e-5 at most)",
    "bin": "the interval was the width of a bin, which is now stated as such; all seeds give the same bin",
    "no test": "beyond the theory, a number without seeds or criterion was undecided, and is now not judged",
    "theory": "a statement of this project that was compared as published is now compared as theory",
    "thread": "a claim of the review thread was compared as beyond the theory, and is now a published claim",
    "certificate": "the certificates were beyond the theory, and are now a claim of their own",
}


def earlier(revision, path):
    """Return a file of a git revision, or None if the revision lacks it."""
    command = ["git", "-C", str(ROOT), "show", f"{revision}:{path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def reaches(x, level):
    """Return x ≥ level up to the rounding of float32, as for the verdicts."""
    return x >= level - 4 * 1.2e-7 * (abs(level) if math.isfinite(level) else 0)


def old_verdict(number):
    """Return the verdict of an earlier number, by the rule of that version."""
    basis = number.get("basis", "published")
    within, outside, unknown, free = WORDS[basis]
    seeds, criterion = number.get("seeds", 0), number["criterion"]
    if criterion is None:
        return unknown if basis == "beyond" and not seeds else free
    value, low, high = number["estimate"]
    if value is not None and low is None and seeds >= ENOUGH_SEEDS:
        low = high = value
    if None in (value, low, high):
        return unknown
    least = -math.inf if criterion["low"] is None else criterion["low"]
    most = math.inf if criterion["high"] is None else criterion["high"]
    if reaches(low, least) and reaches(-high, -most):
        return within
    if reaches(-low, -most) and reaches(high, least):
        return unknown
    return "holds for some" if basis == "beyond" and number.get("hits") else outside


def is_close(before, after):
    """Return whether all of two sequences of numbers are equal up to the rounding of float32."""
    pairs = zip(before, after, strict=True)
    return all(x == y or (None not in (x, y) and math.isclose(x, y, rel_tol=1e-5)) for x, y in pairs)


def differences(book, item, old, new, is_new):
    """Yield the reasons why two numbers differ, as keys of `EXPLAINED` or descriptions.

    `is_new` is True if the item was run again.
    """
    value, low, high = old["estimate"]
    ends = new.interval or (None, None)
    if (
        is_new
        and (value, low, high) != (new.value, *ends)
        and is_close((value, low, high), (new.value, *ends))
    ):
        yield "rounding"
        value, low, high = new.value, *ends
    if value != new.value:
        yield f"value {value} -> {new.value}"
    if (low, high) != ends:
        width = None if low is None else high - low
        is_bin = new.interval is None and width and abs(width - new.resolution) < 1e-9
        yield "bin" if is_bin else f"interval {low, high} -> {new.interval}"
    hits = old.get("hits")
    if hits is None and new.counts:  # shares of earlier versions had no counts
        hits = round(value * old["seeds"])
    counts = (old.get("seeds", 0), old.get("missing", 0), hits)
    if counts != (new.seeds, new.missing, new.counts[0] if new.counts else None):
        yield f"seeds {counts} -> {new.seeds, new.missing, new.counts}"
    before, after = old["criterion"], new.expected
    ends = (None, None) if before is None else (before["low"], before["high"])
    if ends != ((after.low, after.high) if after else (None, None)):
        yield f"criterion {ends} -> {after}"
    if old["published"].replace("-", "", 1 if old["published"] == "-" else 0) != new.published:
        yield f"published {old['published']!r} -> {new.published!r}"
    basis, verdict = BASES[old.get("basis", "published")], old_verdict(old)
    if basis != new.basis:
        yield {
            ("findings", "label_window"): "theory",
            ("claims", "V"): "thread",
            ("claims", "certificate"): "certificate",
        }.get((book, item), f"basis {basis} -> {new.basis}")
    if TRANSLATED[verdict] != new.verdict:
        is_free = before is None and verdict == "undecided" and not new.verdict
        yield "no test" if is_free else f"verdict {verdict} -> {new.verdict}"


def main():
    """Compare all records, print the counts, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("revision", help="git revision with the earlier records")
    revision, counts, failed = parser.parse_args().revision, Counter(), 0
    for book in BOOKS:
        folder = ROOT / PUBLISHED / book
        for path in sorted((folder / "items").glob("*.json")):
            before = earlier(revision, path.relative_to(ROOT).as_posix())
            record = read_record(path, folder)
            after = record.findings
            if before is None or len(before["findings"]) != len(after):
                print(f"{book} {path.stem}: {before and len(before['findings'])} numbers -> {len(after)}")
                failed += 1
                continue
            for old, new in zip(before["findings"], after, strict=True):
                found = list(differences(book, path.stem, old, new, not record.reused))
                counts.update(found if found else ["same"])
                for text in found:
                    if text not in EXPLAINED:
                        print(f"{book} {path.stem}: {old['measured']} ({new.id}): {text}")
                        failed += 1
    print(f"{counts.pop('same', 0)} numbers are the same, with their criteria and verdicts.")
    for reason, number in counts.items():
        print(f"{number}: {EXPLAINED.get(reason, reason)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
