"""Compare every published number in the books with the records of an earlier git revision.

    python benchmarks/compare_records.py f0d469ae
    python benchmarks/compare_records.py c0845d37

The earlier records have one entry per number, in the same order. A number is unchanged if all its fields are
equal: value, interval, counts, criterion, basis and verdict. The records of c0845d37 have a different format.
In these records, a number is unchanged if its value, interval, seeds and criterion are equal, and if its
verdict is the translation of the earlier verdict. Other differences must be in `EXPLAINED`. A search is
unchanged if its verdict, numbers of instances and counterexample are equal. The script prints how many
numbers are unchanged, and how many differ for each reason. It fails if a number is lost or added, or differs
for an unknown reason.
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
BOOKS = ("paper", "claims", "neighbours", "findings", "claims2026")
# Fields that are equal in the files of two searches with the same outcome.
SEARCHED = (
    "verdict",
    "seed",
    "tried",
    "inside",
    "checked",
    "undecided",
    "unconfirmed",
    "best_score",
    "by_size",
    "closest",
    "instance",
    "control",
    "witness",
    "left",
    "right",
    "evidence",
    "shrunk_from",
)
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
    "searched again": "the file of the claim had changed; the same budget in seconds reaches other instances",
    "certificate": "the certificates were beyond the theory, and are now a claim of their own",
}


def earlier(revision, path):
    """Return the contents of a JSON file in a git revision, or None if the revision lacks the file."""
    command = ["git", "-C", str(ROOT), "show", f"{revision}:{path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def reaches(x, level):
    """Return True if x ≥ level up to the float32 rounding that verdicts allow."""
    return x >= level - 4 * 1.2e-7 * (abs(level) if math.isfinite(level) else 0)


def old_verdict(number):
    """Return the verdict on a number under the rule of the earlier version."""
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
    """Return True if two sequences of numbers are equal up to float32 rounding."""
    pairs = zip(before, after, strict=True)
    return all(x == y or (None not in (x, y) and math.isclose(x, y, rel_tol=1e-5)) for x, y in pairs)


def differences(book, item, old, new, is_new):
    """Yield the differences between two records of a number, as keys of `EXPLAINED` or as descriptions.

    `is_new` is True if the item was run again.
    """
    if "estimate" not in old:
        # Records omit fields that have their default values. Earlier records do not.
        old, new = {"resolution": 0.0} | old, {"resolution": 0.0} | new
        keys = [key for key in old | new if old.get(key) != new.get(key)]
        yield from (f"{key} {old.get(key)} -> {new.get(key)}" for key in keys)
        return
    value, low, high = old["estimate"]
    now, ends = new["value"], tuple(new.get("interval") or (None, None))
    if is_new and (value, low, high) != (now, *ends) and is_close((value, low, high), (now, *ends)):
        yield "rounding"
        value, low, high = now, *ends
    if value != now:
        yield f"value {value} -> {now}"
    if (low, high) != ends:
        width = None if low is None else high - low
        is_bin = "interval" not in new and width and abs(width - new.get("resolution", 0)) < 1e-9
        yield "bin" if is_bin else f"interval {low, high} -> {ends}"
    hits, found = old.get("hits"), new.get("counts")
    if hits is None and found:  # fractions in earlier versions had no counts
        hits = round(value * old["seeds"])
    counts = (old.get("seeds", 0), old.get("missing", 0), hits)
    if counts != (new.get("seeds", 0), new.get("missing", 0), found[0] if found else None):
        yield f"seeds {counts} -> {new.get('seeds'), new.get('missing'), found}"
    before, after = ((x["low"], x["high"]) if x else None for x in (old["criterion"], new.get("expected")))
    if before != after:
        yield f"criterion {before} -> {after}"
    published = new.get("published", "")
    if old["published"].replace("-", "", 1 if old["published"] == "-" else 0) != published:
        yield f"published {old['published']!r} -> {published!r}"
    basis, verdict = BASES[old.get("basis", "published")], old_verdict(old)
    if basis != new.get("basis", "published"):
        yield {
            ("findings", "label_window"): "theory",
            ("claims", "V"): "thread",
            ("claims", "certificate"): "certificate",
        }.get((book, item), f"basis {basis} -> {new.get('basis', 'published')}")
    if TRANSLATED[verdict] != new.get("verdict", ""):
        is_free = before is None and verdict == "undecided" and not new.get("verdict")
        yield "no test" if is_free else f"verdict {verdict} -> {new.get('verdict', '')}"


def listed(revision, folder):
    """Return the paths of the JSON files below a folder in a git revision."""
    command = ["git", "-C", str(ROOT), "ls-tree", "-r", "--name-only", revision, "--", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [path for path in done.stdout.splitlines() if path.endswith(".json")]


def searches(revision):
    """For each search, yield its file in a revision, and the fields that differ from the published file.

    If the claim changed and both searches found no counterexample, "searched again" replaces the fields.
    """
    for name in listed(revision, f"{PUBLISHED}/refute"):
        if name.endswith(("/verdict.json", "/counterexample.json")):
            path = ROOT / name
            # The first version did not count unconfirmed violations; there were none.
            before = {"unconfirmed": 0} | earlier(revision, name)
            after = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            after = {"unconfirmed": 0} | after
            changed = [key for key in SEARCHED if before.get(key) != after.get(key)]
            is_new = before.get("claim_sha256") != after.get("claim_sha256") and "verdict" not in changed
            # Without a counterexample, the budget determines how many instances are tried.
            is_explained = changed and is_new and after["verdict"] == "no counterexample"
            yield name, ["searched again"] if is_explained else changed


def main():
    """Compare all records, print the counts, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("revision", help="git revision with the earlier records")
    revision, counts, failed = parser.parse_args().revision, Counter(), 0
    for book in BOOKS:
        folder = ROOT / PUBLISHED / book
        if not listed(revision, f"{PUBLISHED}/{book}"):
            print(f"{book}: not in the revision")
            continue
        for path in sorted((folder / "items").glob("*.json")):
            before = earlier(revision, path.relative_to(ROOT).as_posix())
            reused = read_record(path, folder).reused
            after = json.loads(path.read_text(encoding="utf-8"))["findings"]
            if before is None or len(before["findings"]) != len(after):
                print(f"{book} {path.stem}: {before and len(before['findings'])} numbers -> {len(after)}")
                failed += 1
                continue
            for old, new in zip(before["findings"], after, strict=True):
                found = list(differences(book, path.stem, old, new, not reused))
                counts.update(found if found else ["same"])
                for text in found:
                    if text not in EXPLAINED:
                        print(f"{book} {path.stem}: {old.get('measured', '')} ({new['id']}): {text}")
                        failed += 1
    for name, keys in searches(revision):
        counts.update(["search"])
        if keys == ["searched again"]:
            counts.update(keys)
        elif keys:
            print(f"{name}: {', '.join(keys)} differ")
            failed += 1
    print(f"{counts.pop('search', 0)} files of searches were compared.")
    print(f"{counts.pop('same', 0)} numbers are the same, with their criteria and verdicts.")
    for reason, number in counts.items():
        print(f"{number}: {EXPLAINED.get(reason, reason)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
