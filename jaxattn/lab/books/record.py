"""Records: the numbers of an item in a JSON file, from which its page is written without the runs."""

import hashlib
import math
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from jaxattn.core.errors import InputError
from jaxattn.core.settings import NotNegative
from jaxattn.lab.books.book import Item, RunScale
from jaxattn.lab.books.finding import Finding, claim_verdict, tally
from jaxattn.lab.refute.search import NONE
from jaxattn.lab.results.judge import DIFFERS
from jaxattn.lab.storage import files as storage
from jaxattn.lab.storage import provenance


class Criteria(msgspec.Struct, omit_defaults=True):
    """File with the criteria of an item.

    Attributes:
        sha256: hash of the file.
        date: day on which this file was committed, or first used if it is not committed; "" if unknown.
        commit: the git commit; "" if the file was not committed.
        changed: True if results had been recorded with another file before.
        file: name of the file.
    """

    sha256: str
    date: str
    commit: str = ""
    changed: bool = False
    file: str = "check.py"

    @property
    def text(self) -> str:
        """Describe when the criteria were fixed, and whether results were recorded with other ones before."""
        where = f"committed on {self.date} in {self.commit[:9]}" if self.commit else f"used since {self.date}"
        where = where if self.date else "date not recorded"
        changed = ", changed after results had been recorded" if self.changed else ""
        return f"{self.file} with SHA-256 {self.sha256[:12]}, {where}{changed}"


class Picture(msgspec.Struct):
    """Figure: path of the file, relative to the results folder, and caption."""

    file: str
    caption: str


class _Table(msgspec.Struct):
    columns: list[str]
    data: list[list[str]]


class Record(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Contents of an item's record.

    Attributes:
        item: name of the item.
        scale: scale of the runs.
        reduced: True if the runs have smaller sizes than those of the item.
        settings: hash of the studies; see `Item.digest`.
        criteria: the file with the criteria.
        command: command that makes the record again.
        made_by: version and commit of the package that ran the studies.
        reused: version whose numbers were taken over; "" if the runs were measured by this version.
        seconds: run time.
        machine: description of the machine.
        facts: facts about the runs, keyed by name.
        findings: the numbers.
        pictures: the figures.
        tables: further tables, keyed by title.
        files: further files, as paths relative to the results folder.
    """

    item: str
    scale: RunScale
    settings: str
    criteria: Criteria
    command: str
    findings: list[Finding]
    reduced: bool = False
    made_by: str = ""
    reused: str = ""
    seconds: NotNegative = 0.0
    machine: str = ""
    facts: dict[str, str] = {}
    pictures: list[Picture] = []
    tables: dict[str, _Table] = {}
    files: list[str] = []

    @property
    def attached(self) -> list[str]:
        """Return the paths of the figures and of the further files."""
        return [*(picture.file for picture in self.pictures), *self.files]

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        """Return the further tables."""
        return {title: pd.DataFrame(x.data, columns=x.columns) for title, x in self.tables.items()}

    def claims(self, item: Item) -> dict[str, tuple[str, list[Finding]]]:
        """Return verdict and findings of each claim, keyed by its statement ("" for the item's own)."""
        groups: dict[str, list[Finding]] = {}
        for finding in self.findings:
            groups.setdefault(finding.claim, []).append(finding)
        settings = "reduced" if self.reduced else item.words.settings
        read = item.words.read
        return {claim: (claim_verdict(own, settings, read), own) for claim, own in groups.items()}

    def summary(self, item: Item) -> tuple[str, str]:
        """Return the verdicts on the claims of the item, and the number of verdicts on its numbers."""
        words = [verdict for verdict, _ in self.claims(item).values() if verdict]
        counts = {word: words.count(word) for word in dict.fromkeys(words)}
        several = len(words) > 1
        text = ", ".join(f"{number} {word}" if several else word for word, number in counts.items())
        return text or "only measured", tally(self.findings)


def table_of(frame: pd.DataFrame) -> _Table:
    """Return a table of strings in the form of a record."""
    return _Table(list(map(str, frame.columns)), frame.to_numpy().tolist())


def path_of(item: str) -> str:
    """Return the path of an item's record, relative to the results folder."""
    return f"items/{item}.json"


def encode(record: Record) -> bytes:
    """Return the contents of the record's file. JSON has neither NaN nor infinity, so both are null."""
    fields = msgspec.to_builtins(record)
    for entry, finding in zip(fields["findings"], record.findings, strict=True):
        if finding.expected:
            entry["expected"] = finding.expected._asdict()
        if finding.verdict:
            # For readers of the file.
            entry["verdict"] = finding.verdict
    return msgspec.json.format(msgspec.json.encode(fields), indent=1) + b"\n"


def read_record(path: Path, folder: Path) -> Record:
    """Read and validate a record below a results folder.

    Raises:
        InputError: the record is missing, damaged or malformed.
    """
    try:
        fields = storage.read_json(path, folder)
        entries = fields.get("findings") if isinstance(fields, dict) else None
        stated = [_to_finding(entry) for entry in entries] if isinstance(entries, list) else []
        record = msgspec.convert(fields, Record)
        if strange := [x for x in record.attached if not storage.is_below(x)]:
            raise ValueError(f"invalid path of a figure or file {strange[0]!r:.60}")
        for finding, verdict in zip(record.findings, stated, strict=True):
            _validate(finding, verdict)
    except storage.Damaged:
        raise
    except (msgspec.ValidationError, ValueError) as error:
        raise InputError(f"{path}: not a valid record: {error}; remove it, and run its item again") from None
    return record


def _to_finding(entry: Any) -> Any:
    """Replace the null entries of a finding in place by NaN and infinity, and return its stated verdict."""
    if not isinstance(entry, dict):
        return ""
    if "value" in entry and entry["value"] is None:
        entry["value"] = math.nan
    if isinstance(known := entry.get("expected"), dict):
        low, high = known.get("low"), known.get("high")
        ends = -math.inf if low is None else low, math.inf if high is None else high
        entry["expected"] = [*ends, known.get("text")]
    return entry.pop("verdict", "")


def _validate(finding: Finding, verdict: str) -> None:
    """Raise ValueError if a number is outside its interval, or a verdict does not follow from it."""
    if finding.interval and math.isfinite(finding.value):
        low, high = finding.interval
        rounding = 1e-6 * abs(finding.value)
        if not low - rounding <= finding.value <= high + rounding:
            raise ValueError(f"{finding.id!r} is outside its interval")
    if finding.verdict != verdict:
        raise ValueError(f"the verdict on {finding.id!r} does not follow from its number")
    if finding.search not in ("", NONE) and verdict != DIFFERS:
        raise ValueError(f"{finding.id!r}: {finding.search} does not follow from its number")


def find_record(item: Item, scale: RunScale, folder: Path) -> tuple[Record | None, str]:
    """Return the record of an item, or None with the reason why the item has to be run.

    Raises:
        InputError: the record is damaged, or has a different scale.
    """
    path = folder / path_of(item.name)
    if not path.exists():
        return None, ""
    record = read_record(path, folder)
    if record.scale != scale:
        raise InputError(
            f"{folder}: contains results at {record.scale} scale; add `--scale {record.scale}`, or choose "
            "another folder with --out"
        )
    if record.settings != item.digest(scale):
        return None, "its settings have changed since it was run"
    return record, ""


def criteria_of(item: Item, folder: Path) -> Criteria:
    """Return the hash of the file with the criteria, and since when it is unchanged.

    An earlier record in the folder counts, also if its studies had other settings.
    """
    path = folder / path_of(item.name)
    earlier = read_record(path, folder).criteria if path.exists() else None
    digest = hashlib.sha256(item.check_file.read_bytes()).hexdigest()
    if earlier and earlier.sha256 == digest:
        return earlier
    commit, date = _committed(item.check_file)
    today = time.strftime("%Y-%m-%d", time.gmtime())
    return Criteria(digest, date or today, commit, changed=earlier is not None, file=item.check_file.name)


def _committed(path: Path) -> tuple[str, str]:
    """Return hash and day of the last commit of a file; two empty strings if it differs, or without git."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(path.parent), *words, "--", path.name]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        if git("status", "--porcelain"):
            return "", ""
        commit, _, date = git("log", "-1", "--format=%H %cs").partition(" ")
    except (OSError, subprocess.SubprocessError):
        return "", ""
    return commit, date


def made_by(manifest: Any) -> str:
    """Return the versions of the package that computed a run, such as "0.9.0 at commit 1a2b3c4d5"."""
    words = []
    for one in provenance.package_versions(manifest):
        commit = f" at commit {known[:9]}" if (known := one.get("commit")) else ""
        words.append(f"jaxattn {one.get('version') or 'of unknown version'}{commit}")
    return ", ".join(dict.fromkeys(words))
