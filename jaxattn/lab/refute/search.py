"""Search for a counterexample to a claim, shrink it, prove it in exact arithmetic, and write it down."""

import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxattn.core.errors import InputError, RunError, first_line, from_user_code, writing
from jaxattn.lab.engine.executor import Executor, check_executor
from jaxattn.lab.refute import proof, shrink
from jaxattn.lab.refute import search_state as states
from jaxattn.lab.refute import space as spaces
from jaxattn.lab.refute.batch import Batch, Outcome, compute, score_batch, verdict
from jaxattn.lab.refute.claim import Claim, label, read_claim, split
from jaxattn.lab.refute.proof import Counterexample
from jaxattn.lab.refute.search_state import Progress
from jaxattn.lab.refute.space import Instance
from jaxattn.lab.storage import provenance

# Files of a search: its state after each batch, and its verdict.
STATE, VERDICT = "search.json", "verdict.json"
# Verdict of a search that found nothing.
NONE = "no counterexample"
# Number of violations from which shrinking starts; each candidate of a numerical claim takes longer.
_STARTS, _STARTS_NUMERICAL = 6, 3
# Progress callback: (description, fraction of the budget, state, seconds left).
Show = Callable[[str, float, str, float], None]


@dataclass(frozen=True)
class Refutation:
    """Outcome of a search.

    Attributes:
        verdict: "falsified", "numerical counterexample, exact target", "numerical counterexample", or one of
            these with " (boundary case)"; or "no counterexample".
        sentence: the verdict with the number of instances, the space and the horizon.
        counterexample: the smallest counterexample, or None.
        tried: number of instances, distinct within batches.
        inside: number of them inside the assumptions.
        best: largest score.
        seconds: time of the search, of all calls that resumed it, and of shrinking.
        files: the files written.
    """

    verdict: str
    sentence: str
    counterexample: Counterexample | None
    tried: int
    inside: int
    best: float
    seconds: float
    files: tuple[Path, ...]


def refute(
    claim: str | Path,
    *,
    budget: float = 300.0,
    seed: int = 0,
    out: str | Path | None = None,
    executor: Executor | None = None,
    evolution: bool = False,
    batches: int | None = None,
    command: str = "",
    show: Show | None = None,
) -> Refutation:
    """Search for a counterexample to a claim.

    Batches of instances are scored, and the most promising instances are decided in exact arithmetic. The
    search ends at the first batch with a counterexample that is not a degenerate case, or when the budget is
    spent, or when all instances of all sizes were tried. The counterexample is then shrunk on the exact
    predicate. The state is saved after each batch, and the same call resumes the search.

    Args:
        claim: Python file that defines `claim`, or "FILE.py:NAME".
        budget: seconds for the search, including compilation and earlier calls that it resumes.
        seed: seed. The batches depend on it alone, and on no clock and number of workers.
        out: folder for the results; defaults to results/refute/NAME, or NAME-seedN for a seed N > 0.
        executor: executor of worker processes that compute batches, such as a ProcessPoolExecutor that spawns
            its processes; defaults to this process.
        evolution: True to let SciPy's differential evolution choose the instances of each batch.
        batches: maximum number of batches; defaults to no maximum.
        command: command line for the record.
        show: progress callback.

    Returns:
        The outcome. Its verdict is never "verified": a search without a counterexample proves nothing about
        instances that were not tried.

    Raises:
        InputError: the claim's file is invalid, or the budget is not positive.
        UserCodeError: a function of the claim raises an exception.
        RunError: check.py denies the counterexample, or a worker fails.
    """
    if budget <= 0:
        raise InputError(f"budget: must be positive, got {budget}")
    if executor is not None:
        check_executor(executor, has_logs=False)
    name, began, cpu = str(claim), time.monotonic(), time.process_time()
    file, attribute = split(name)
    with from_user_code(frozenset({str(file)}), name):
        read, folder = read_claim(name), _folder(name, seed, out)
        digest, saved = hashlib.sha256(file.read_bytes()).hexdigest(), folder / STATE
        progress = _resumed(states.start(read, seed, f"{digest}:{attribute}", evolution), saved)
        before = progress.seconds, progress.cpu_seconds

        def save() -> float:
            """Save the state; return the seconds of the search, with those of the calls that it resumes."""
            progress.seconds = before[0] + time.monotonic() - began
            progress.cpu_seconds = before[1] + time.process_time() - cpu
            states.save(progress, saved)
            return progress.seconds

        found = None
        for batch, outcome in _outcomes(read, f"{file}:{attribute}", progress, executor):
            progress.add(read, batch, outcome)
            spent = save()
            if show:
                tried, state = f"{sum(progress.tried):,} instances", f"best score {progress.best:.4g}"
                show(tried, min(spent / budget, 1.0), state, max(budget - spent, 0))
            if outcome.found:
                found = smallest(read, [spaces.from_lists(x) for x in outcome.found])
                progress.unconfirmed += 0 if found else len(outcome.found)
                spent = save()
            if found or spent >= budget or (batches is not None and progress.number >= batches):
                break
        if found is None and progress.boundary:
            found = smallest(read, [spaces.from_lists(x) for _, x in progress.boundary[:1]], boundary=True)
        save()
        return _conclude(read, progress, found, command, file, folder)


def _folder(name: str, seed: int, out: str | Path | None) -> Path:
    """Return the folder for the results, without the files of an earlier search except its state."""
    folder = Path(out or f"results/refute/{label(name)}{f'-seed{seed}' * (seed != 0)}")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for file in (proof.RECORD, proof.SCRIPT, proof.PICTURE, proof.PAGE, VERDICT):
            (folder / file).unlink(missing_ok=True)
    return folder


def smallest(claim: Claim, found: list[Instance], boundary: bool = False) -> Counterexample | None:
    """Shrink counterexamples, and return the smallest; None if numerical evidence confirms none of them.

    Args:
        claim: the claim.
        found: instances that violate the claim exactly.
        boundary: True to keep degenerate cases.
    """
    starts = found[: _STARTS_NUMERICAL if claim.evidence else _STARTS]
    holds = _numerical_predicate(claim) if claim.evidence else shrink.one_by_one(_decides(claim, boundary))
    shrunk = [(*shrink.shrink(claim, one, holds), one) for one in starts]
    size = claim.size or shrink.default_size
    originals = [(one, 0, one) for one in starts] if claim.evidence else []
    for instance, calls, start in [*sorted(shrunk, key=lambda x: size(x[0])), *originals]:
        evidence = claim.evidence(instance) if claim.evidence else None
        if evidence is None or evidence.contradicts:
            return Counterexample(instance, claim.exact(instance), evidence, start, calls)
    return None


def _decides(claim: Claim, boundary: bool) -> Callable[[Instance], bool]:
    """Return the exact predicate."""

    def decide(instance: Instance) -> bool:
        found = verdict(claim, instance)
        return found == "" or (boundary and found is not None)

    return decide


def _numerical_predicate(claim: Claim) -> shrink.Predicate:
    """Return the predicate of a numerical claim: the exact target, and a positive score of the flow."""
    exact = _decides(claim, boundary=False)

    def first(candidates: Any) -> int | None:
        waiting = deque(enumerate(candidates))
        while waiting:
            part: list[tuple[int, Instance]] = []
            # The next candidates of the same shape, as many as the score handles together.
            while waiting and len(part) < (claim.flows or claim.batch):
                if part and _shape(waiting[0][1]) != _shape(part[0][1]):
                    break
                index, one = waiting.popleft()
                part += [(index, one)] if exact(one) else []
            if part:
                scores = score_batch(claim, spaces.stack([one for _, one in part]))
                positive = [index for (index, _), score in zip(part, scores, strict=True) if score > 0]
                if positive:
                    return positive[0]
        return None

    return first


def _shape(instance: Instance) -> tuple[Any, ...]:
    return tuple(np.shape(x) for x in instance.values())


def _resumed(new: Progress, path: Path) -> Progress:
    """Return the saved state of the same search, or the new one."""
    found = states.load(path)
    same = ("seed", "claim", "evolution")
    if found is None or any(getattr(found, name) != getattr(new, name) for name in same):
        return new
    # Violations of the last batch may not have been shrunk before the interruption.
    return new if len(found.found) > found.unconfirmed else found


def _outcomes(
    claim: Claim, name: str, progress: Progress, executor: Executor | None
) -> Iterator[tuple[Batch, Outcome]]:
    """Yield batches with their outcomes, in order."""
    while batches := progress.next_round(claim, name):
        if executor is None:
            yield from ((batch, compute(claim, batch)) for batch in batches)
        else:
            futures = [executor.submit(batch.run) for batch in batches]
            try:
                for batch, future in zip(batches, futures, strict=True):
                    yield batch, _returned(batch, future)
            finally:
                for future in futures:
                    future.cancel()


def _returned(batch: Batch, future: Any) -> Outcome:
    try:
        found: Outcome = future.result()
    except (InputError, RunError):
        raise
    except Exception as error:
        raise RunError(
            f"batch {batch.number}: its worker ended without a result ({type(error).__name__}: "
            f"{first_line(error)}); the same command resumes the search"
        ) from None
    return found


def _conclude(
    claim: Claim, progress: Progress, one: Counterexample | None, command: str, file: Path, out: Path
) -> Refutation:
    """Write the files, and return the outcome."""
    tried, inside = sum(progress.tried), sum(progress.inside)
    by = {
        "command": command or "jaxattn.lab.refute.refute",
        "seed": progress.seed,
        "batches": progress.number,
        "tried": tried,
        "inside": inside,
        "checked": progress.checked,
        "undecided": progress.undecided,
        "unconfirmed": progress.unconfirmed,
        "seconds": round(progress.seconds, 2),
        "cpu_seconds": round(progress.cpu_seconds, 2),
        "machine": f"{os.cpu_count()} CPU cores",
        "jaxattn": provenance.version("jaxattn"),
        "claim_sha256": progress.claim.partition(":")[0],
    }
    script = file.parent / claim.check if claim.check else None
    files = tuple(proof.write(claim, one, by, script, out)) if one else ()
    kind = NONE if one is None else one.verdict(claim)
    sentence = _sentence(claim, progress, one, kind)
    summary: dict[str, Any] = {
        "verdict": kind,
        "sentence": sentence,
        "statement": claim.statement,
        "source": claim.source,
        "best_score": progress.best if np.isfinite(progress.best) else None,
        **by,
        "by_size": _by_size(claim, progress),
        "closest": _closest(claim, progress),
    }
    path = out / VERDICT
    with writing(path):
        path.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return Refutation(kind, sentence, one, tried, inside, progress.best, progress.seconds, (*files, path))


def _by_size(claim: Claim, progress: Progress) -> list[dict[str, Any]]:
    return [
        {**size, "tried": progress.tried[i], "inside": progress.inside[i], "all": i in progress.done}
        for i, size in enumerate(claim.space.sizes)
    ]


def _closest(claim: Claim, progress: Progress) -> Any:
    """Return the instance with the largest score, for the record."""
    pools = [pool[0] for pool in progress.pools if pool]
    if not pools:
        return None
    _, lists = max(pools, key=lambda pair: pair[0])
    batch = spaces.repaired(claim.space, spaces.stack([spaces.from_lists(lists)]))
    return spaces.to_lists(spaces.pick(batch, 0))


def _sentence(claim: Claim, progress: Progress, one: Counterexample | None, kind: str) -> str:
    tried, inside = sum(progress.tried), sum(progress.inside)
    horizon = f", to horizon {claim.horizon}" * bool(claim.horizon)
    space = f"{inside:,} instances ({tried:,} tried) of the space {claim.space.describe()}{horizon}"
    space += f"; {progress.undecided:,} candidates were not decided exactly" * bool(progress.undecided)
    space += f"; the flow confirmed none of {progress.unconfirmed:,} candidates" * bool(progress.unconfirmed)
    if one is None:
        return f"{NONE} in {space}"
    if one.sides.boundary:
        return f"{kind}: {one.sides.boundary}; no substantive counterexample in {space}"
    found = json.dumps(spaces.to_lists(one.instance))
    return f"{kind} after {inside:,} instances inside the assumptions ({tried:,} tried): {found}"
