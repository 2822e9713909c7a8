"""Items with a claim: run its searches for counterexamples, and measure what they found."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from jaxattn.lab.books import record as records
from jaxattn.lab.books.book import Item, RunScale
from jaxattn.lab.books.finding import Finding, share
from jaxattn.lab.books.record import Picture, Record
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.refute import proof, read_claim, refute
from jaxattn.lab.refute.claim import Claim
from jaxattn.lab.refute.search import NONE, VERDICT
from jaxattn.lab.refute.shrink import default_size
from jaxattn.lab.refute.space import from_lists
from jaxattn.lab.results.judge import at_least, at_most

# Seconds for a search at laptop scale.
LAPTOP_S = 60.0


def run(item: Item, scale: RunScale, seeds: int, folder: Path, reporter: Reporter) -> None:
    """Search for counterexamples to the claim of an item with each of the seeds 0, 1, ...

    Finished searches are not repeated, and others are resumed.

    Args:
        item: the item.
        scale: scale, which limits the budget.
        seeds: number of seeds.
        folder: folder for the searches, one folder per seed.
        reporter: receives progress messages.

    Raises:
        InputError, UserCodeError: the claim is invalid, or raises an exception.
        RunError: check.py of the claim denies the counterexample.
    """
    budget = min(item.words.budget, LAPTOP_S) if scale == "laptop" else item.words.budget
    for seed in range(seeds):
        out = folder / f"seed-{seed}"
        if not _is_finished(item, out, budget):
            found = refute(
                item.claim,
                budget=budget,
                seed=seed,
                out=out,
                command=item.command(scale),
                show=reporter.update,
            )
            reporter.note(f"{item.name}: {found.sentence}")


def measure(item: Item, scale: RunScale, folder: Path, out: Path) -> tuple[Record, dict[str, bytes]]:
    """Measure the searches of an item.

    Args:
        item: the item.
        scale: scale of the searches.
        folder: folder with the searches.
        out: the results folder, which may contain an earlier record.

    Returns:
        The record, and the contents of its figures and files by path. They are those of the search with the
        smallest counterexample.
    """
    claim = read_claim(item.claim)
    paths = sorted(folder.glob("seed-*"), key=lambda path: (len(path.name), path.name))
    found = {path: known for path in paths if (known := _verdict(item, path))}
    size, verdicts = claim.size or default_size, list(found.values())
    proofs = [(_read(path / proof.RECORD), path) for path, x in found.items() if x["verdict"] != NONE]
    proofs.sort(key=lambda x: (bool(x[0].get("boundary")), size(from_lists(x[0]["instance"]))))
    best, source = proofs[0] if proofs else (None, next(iter(found)))
    files = {
        f"{item.name}/{name}": (source / name).read_bytes()
        for name in (VERDICT, proof.RECORD, proof.SCRIPT, proof.PICTURE)
        if (source / name).is_file()
    }
    picture = f"{item.name}/{proof.PICTURE}"
    record = Record(
        item.name,
        scale,
        item.digest(scale),
        records.criteria_of(item, out),
        item.command(scale),
        _findings(claim, verdicts, best),
        made_by=", ".join(dict.fromkeys(f"jaxattn {x['jaxattn']}" for x in verdicts)),
        seconds=sum(x["seconds"] for x in verdicts),
        machine=verdicts[0].get("machine", ""),
        facts=_facts(item, claim, verdicts),
        pictures=[Picture(picture, "The instance of the counterexample.")] if picture in files else [],
        tables={title: records.table_of(x) for title, x in proof.tables(best).items()} if best else {},
        files=[name for name in files if name != picture],
    )
    return record, files


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _verdict(item: Item, folder: Path) -> dict[str, Any] | None:
    """Return the verdict of a search of the item's claim, or None if it was not searched as it is now."""
    path = folder / VERDICT
    found = _read(path) if path.is_file() else {}
    digest = hashlib.sha256(item.check_file.read_bytes()).hexdigest()
    same = found.get("claim_sha256") == digest and found["statement"] == read_claim(item.claim).statement
    return found if same else None


def _is_finished(item: Item, folder: Path, budget: float) -> bool:
    """Return whether the claim was searched with a counterexample, for the budget, or completely."""
    known = _verdict(item, folder)
    if known is None:
        return False
    complete = all(size["all"] for size in known["by_size"])
    return known["verdict"] != NONE or complete or bool(known["seconds"] >= budget)


def _findings(
    claim: Claim, verdicts: Sequence[Mapping[str, Any]], best: Mapping[str, Any] | None
) -> list[Finding]:
    """Return what the searches found, and the share of seeds with a counterexample if there are several."""
    tried = sum(x["inside"] for x in verdicts)
    unit = f"{tried:,} instances" + ", 1 seed" * (len(verdicts) == 1)
    about: dict[str, Any] = {
        "claim": claim.statement,
        "unit": unit,
        "search": best["verdict"] if best else NONE,
    }
    if best is None:
        horizon = f", to horizon {claim.horizon}" * bool(claim.horizon)
        text = f"counterexamples among the instances tried in {claim.space.describe()}{horizon}"
        return [Finding("search", text, 0.0, (0.0, 0.0), **about)]
    ends, expected = (float(Fraction(best["left"]) - Fraction(best["right"])),) * 2, at_most(0)
    text = "left side minus right side at the smallest counterexample"
    if evidence := best["evidence"]:
        text, ends = evidence["quantity"], (evidence["low"], evidence["high"])
        limit = at_most if ends[0] > evidence["predicted"] else at_least
        expected = limit(evidence["predicted"])
    found = [Finding("search", text, sum(ends) / 2, ends, expected=expected, **about)]
    if len(verdicts) > 1:
        hits = [x["verdict"] == best["verdict"] for x in verdicts]
        found.append(share("found", "searches that end with this verdict", hits, claim=claim.statement))
    return found


def _facts(item: Item, claim: Claim, verdicts: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return facts on the searches of all seeds, and the closest instance if none found a counterexample."""
    names = ("inside", "tried", "checked", "undecided", "unconfirmed")
    total = {name: sum(x.get(name, 0) for x in verdicts) for name in names}
    decided = f"{total['checked']:,} instances"
    if total["undecided"]:
        decided += f"; {total['undecided']:,} more with a positive score were left undecided"
    if total["unconfirmed"]:
        decided += f"; the flow confirmed none of {total['unconfirmed']:,} violations"
    file, _, name = item.claim.partition(":")
    wall, cpu = (sum(x[key] for x in verdicts) for key in ("seconds", "cpu_seconds"))
    facts = {
        "hypothesis": claim.hypothesis,
        "source": claim.source,
        "repaired statement": claim.repaired,
        "claim": item.location(file) + f":{name}" * bool(name),
        "instances": f"{total['inside']:,} inside the assumptions, {total['tried']:,} tried",
        "decided exactly": decided,
        "run time": f"{wall:.0f} s, {cpu:.0f} s of processor time",
    }
    scored = [x for x in verdicts if x["best_score"] is not None]
    if scored and all(x["verdict"] == NONE for x in verdicts):
        near = max(scored, key=lambda x: x["best_score"])
        facts["closest instance"] = f"{json.dumps(near['closest'])}, with the score {near['best_score']:.4g}"
    return {key: fact for key, fact in facts.items() if fact}
