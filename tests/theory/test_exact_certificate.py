"""Integer certificates, their checker, and forged certificates."""

import ast
import hashlib
import json
import struct
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.theory import check_certificate

CHECKER = Path(check_certificate.__file__)


def check(path):
    """Return the reason why the checker rejects a certificate; "" if it accepts it."""
    try:
        claim = json.loads(path.read_text())
        assert "data " in check_certificate.check(claim, path.with_name(claim["data"]).read_bytes())
    except (ValueError, TypeError, KeyError, ArithmeticError, struct.error) as reason:
        return str(reason) or "refused"
    return ""


@pytest.fixture(scope="module")
def separable(instances):
    """Feasible problems without ties, with their answers."""
    found = []
    for corpus, E, _, chosen in instances:
        solution = ja.theory.max_margin(ja.theory.Scores(E, corpus), chosen)
        if solution.feasible and not len(solution.ties):
            found.append((ja.theory.Scores(E, corpus), chosen, solution))
    assert len(found) >= 8
    return found


def exact_difference(E, s, t):
    return [Fraction(float(x)) - Fraction(float(y)) for x, y in zip(E[s], E[t], strict=True)]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def pairs_of(scores, bags):
    """Return all pairs of the selection."""
    return [
        (max(held, key=scores.__getitem__), t)
        for held in bags
        for t in held
        if t != max(held, key=scores.__getitem__)
    ]


def test_claims_in_certificates_hold_in_rational_arithmetic(instances, separable, loops, tmp_path):
    bags, _ = loops
    scores_of = {id(E): scores for _, E, scores, _ in instances}
    for number, (scores, chosen, solution) in enumerate(separable):
        path = tmp_path / f"{number}.json"
        gap = ja.theory.write_certificate(path, scores, chosen, solution).gap
        claim = json.loads(path.read_text())
        p = [Fraction(x) / Fraction(claim["scale"]) for x in claim["p"]]
        E = scores.keys
        margins = [
            dot(exact_difference(E, s, t), p) for s, t in pairs_of(scores_of[id(E)], bags(scores.corpus))
        ]
        assert min(margins) == 1
        w = [Fraction(0)] * len(p)
        for s, t, weight in claim["multipliers"]:
            w = [x + weight * y for x, y in zip(w, exact_difference(E, s, t), strict=True)]
        total = sum(weight for *_, weight in claim["multipliers"])
        proven = 1 - total**2 / (dot(w, w) * dot(p, p))
        assert float(proven) == gap
        assert proven <= Fraction(claim["gap"]) <= proven * Fraction(1002, 1000)
        # The gap is a few units in the last place, so its floating-point value is rounded.
        assert 0 <= gap < 1e-12 + 2 * solution.duality_gap
        assert check(path) == ""


def test_the_checker_needs_only_the_standard_library(separable, tmp_path):
    ja.theory.write_certificate(tmp_path / "a.json", *separable[0])
    run = [sys.executable, "-I", "-S", CHECKER, "a.json"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("accepted: gap ≤ ")
    assert " for 12 x 16 keys and 10 sequences, data " in done.stdout
    claim = json.loads((tmp_path / "a.json").read_text())
    (tmp_path / "a.json").write_text(json.dumps(claim | {"gap": "0"}))
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("refused: the gap is ")
    (tmp_path / "b.json").write_text("{}")
    for file, reason in (
        ("b.json", "refused: the file is malformed, KeyError('data')"),
        ("c.json", "No such file"),
    ):
        done = subprocess.run([*run[:-1], file], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 1
        assert reason in done.stderr
        assert done.stderr.count("\n") == 1
    tree = ast.parse(CHECKER.read_text(encoding="utf-8"))
    modules = {x.module for x in ast.walk(tree) if isinstance(x, ast.ImportFrom)}
    modules |= {name.name for x in ast.walk(tree) if isinstance(x, ast.Import) for name in x.names}
    assert {x.partition(".")[0] for x in modules} <= sys.stdlib_module_names


class Forger:
    """A certificate on disk, with methods that forge it."""

    def __init__(self, path, rng):
        self.path, self.rng = path, rng
        self.claim, self.data = json.loads(path.read_text()), path.with_suffix(".bin").read_bytes()
        self.tokens, self.dim, self.number = struct.unpack_from("<3q", self.data, 8)

    def written(self, **changes):
        claim, data = self.claim | changes, changes.pop("data_bytes", self.data)
        claim.pop("data_bytes", None)
        if changes.pop("sealed", False):
            claim["sha256"] = hashlib.sha256(data).hexdigest()
        claim.pop("sealed", None)
        path = self.path.with_name("forged.json")
        claim["data"] = "forged.bin"
        path.with_suffix(".bin").write_bytes(data)
        path.write_text(json.dumps(claim))
        return path

    def entry_of_p(self):
        """Change a leading digit of a large entry."""
        p = list(self.claim["p"])
        place = int(np.argsort(np.abs(np.array(p, float)))[-self.rng.integers(1, 4)])
        p[place] += p[place] // int(10 ** self.rng.integers(1, 9)) * int(self.rng.choice([-1, 1]))
        return self.written(p=p)

    def multiplier(self):
        made = [list(x) for x in self.claim["multipliers"]]
        if len(made) == 1:  # its scale does not matter
            return self.pair()
        row = made[int(np.argmax([x[2] for x in made]))]
        row[2] += row[2] // int(10 ** self.rng.integers(1, 6)) * int(self.rng.choice([-1, 1]))
        return self.written(multipliers=made)

    def pair(self):
        """Reverse a pair, so that no sequence contains it."""
        made = [list(x) for x in self.claim["multipliers"]]
        row = made[self.rng.integers(len(made))]
        row[:2] = row[1::-1]
        return self.written(multipliers=made)

    def left_out(self):
        """Remove a token of a pair with a multiplier from all sequences."""
        words = 32 + 8 * self.tokens * self.dim
        entries = np.frombuffer(self.data[words:], "<i4").tolist()
        t = self.claim["multipliers"][self.rng.integers(len(self.claim["multipliers"]))][1]
        kept, place = [], 0
        while place < len(entries):
            held = [x for x in entries[place + 1 : place + 1 + entries[place]] if x != -1 - t]
            kept += [len(held), *held]
            place += 1 + entries[place]
        return self.written(data_bytes=self.data[:words] + np.array(kept, "<i4").tobytes(), sealed=True)

    def key(self, sealed=True):
        """Shift a key of a selected token slightly against p."""
        s, *_ = self.claim["multipliers"][self.rng.integers(len(self.claim["multipliers"]))]
        begin = 32 + 8 * self.tokens * self.dim
        keys = np.frombuffer(self.data[32:begin], "<f8").copy()
        row = keys.reshape(self.tokens, -1)[s]
        p = np.array(self.claim["p"], float)
        row -= 1e-6 * p / np.linalg.norm(p)
        return self.written(data_bytes=self.data[:32] + keys.tobytes() + self.data[begin:], sealed=sealed)

    def key_without_seal(self):
        return self.key(sealed=False)

    def negative(self):
        made = [list(x) for x in self.claim["multipliers"]]
        made[self.rng.integers(len(made))][2] *= -1
        return self.written(multipliers=made)

    def smaller_gap(self):
        return self.written(gap=str(Fraction(self.claim["gap"]) / 2 - Fraction(1, 10**20)))

    def larger_scale(self):
        """Shorten p."""
        return self.written(
            scale=str(Fraction(self.claim["scale"]) * (1 + Fraction(1, 10 ** int(self.rng.integers(1, 15)))))
        )

    def other_shape(self):
        """Reshape the keys to twice as many of half the dimension, or the reverse."""
        shape = (2 * self.tokens, self.dim // 2) if self.dim % 2 == 0 else (self.dim, self.tokens)
        p = self.claim["p"][: shape[1]] + [0] * max(0, shape[1] - self.dim)
        data = self.data[:8] + struct.pack("<3q", *shape, self.number) + self.data[32:]
        return self.written(p=p, data_bytes=data, sealed=True)

    def vacuous_gap(self):
        return self.written(gap=str(self.rng.choice(["1", "5", "-1e-30"])))

    def malformed_sequence(self):
        words = 32 + 8 * self.tokens * self.dim
        entries = np.frombuffer(self.data[words:], "<i4").tolist()
        place = int(self.rng.integers(4))
        if place == 0:
            entries[0] = 99_999
        elif place == 1:
            entries[0] = -3
        elif place == 2:
            entries += [0, 0]
        else:
            entries[1] = -1 - entries[1]  # nothing is selected
        return self.written(data_bytes=self.data[:words] + np.array(entries, "<i4").tobytes(), sealed=True)

    def no_number(self):
        keys = np.frombuffer(self.data[32 : 32 + 8 * self.tokens * self.dim], "<f8").copy()
        keys[self.rng.integers(len(keys))] = self.rng.choice([np.nan, np.inf])
        return self.written(
            data_bytes=self.data[:32] + keys.tobytes() + self.data[32 + keys.nbytes :], sealed=True
        )

    def other_selection(self):
        """Swap the selected token of a sequence with another one."""
        words = 32 + 8 * self.tokens * self.dim
        entries = np.frombuffer(self.data[words:], "<i4").copy()
        entries[1], entries[2] = -1 - entries[2], -1 - entries[1]
        return self.written(data_bytes=self.data[:words] + entries.tobytes(), sealed=True)


def test_forged_certificates_are_rejected(separable, tmp_path):
    rng, refused = np.random.default_rng(5), 0
    kinds = [
        "entry_of_p", "multiplier", "pair", "left_out", "key", "key_without_seal", "negative", "smaller_gap",
        "larger_scale", "other_selection", "other_shape", "vacuous_gap", "malformed_sequence", "no_number",
    ]  # fmt: skip
    for number in range(20):
        path = tmp_path / f"{number}.json"
        ja.theory.write_certificate(path, *separable[number % len(separable)])
        for kind in kinds:
            forged = getattr(Forger(path, rng), kind)()
            reason = check(forged)
            assert reason, (number, kind)
            refused += 1
    assert refused == 280


@pytest.mark.parametrize("scale", [1e-100, 1e-12, 1.0, 1e12, 1e100])
def test_keys_of_any_scale_and_dtype_can_be_certified(separable, scale, tmp_path):
    scores, chosen, _ = separable[0]
    rounded = scores.keys.astype(np.float32).astype(float)
    for keys in (scale * scores.keys, scale * rounded):
        scaled = scores.replace(keys=keys)
        found = ja.theory.max_margin(scaled, chosen)
        assert ja.theory.write_certificate(tmp_path / "a.json", scaled, chosen, found).gap < 1e-12
        assert check(tmp_path / "a.json") == ""


def test_problems_without_an_exact_certificate_are_rejected(instances, separable, tmp_path):
    path = tmp_path / "a.json"
    with_ties = [
        x for x in instances if ja.theory.max_margin(ja.theory.Scores(x.E, x.corpus), x.selection).ties.size
    ]
    corpus, E, _, chosen = with_ties[0]
    scores = ja.theory.Scores(E, corpus)
    with pytest.raises(ja.InputError, match="tie"):
        ja.theory.write_certificate(path, scores, chosen, ja.theory.max_margin(scores, chosen))
    scores, chosen, solution = separable[0]
    batch = jax.tree.map(lambda x: np.stack([x, x]), solution)
    with pytest.raises(ja.InputError, match="is a batch, has no pairs or is undecided"):
        ja.theory.write_certificate(path, scores, chosen, batch)
    with pytest.raises(ja.InputError, match="fails to separate the selected tokens in exact arithmetic"):
        ja.theory.write_certificate(path, scores, chosen, solution.replace(p=-solution.p))
    with pytest.raises(ja.RunError, match="cannot be written"):
        ja.theory.write_certificate(tmp_path / "missing" / "a.json", scores, chosen, solution)
    assert not path.exists()


def infeasible(rng, dim, cycles):
    """Return a random infeasible problem with cycles of pairs or too many disjoint pairs."""
    if cycles:
        held = [np.unique(rng.integers(12, size=4)) for _ in range(40)]
        chosen = np.array([rng.choice(x) for x in held])
    else:
        held = np.arange(16 * dim).reshape(-1, 2)
        chosen = held[:, 0]
    labels = [1, -1] * (len(held) // 2)
    tokens = 12 if cycles else held.size
    corpus = ja.data.from_sequences([x.tolist() for x in held], labels, vocab_size=tokens)
    index, present = np.asarray(corpus.bags.index), np.asarray(corpus.bags.count) > 0
    mask = present & (index == chosen[np.asarray(corpus.bags.owner)][:, None])
    scores = ja.theory.Scores(rng.normal(size=(tokens, dim)), corpus)
    return scores, ja.theory.Selection(jax.numpy.asarray(mask))


@pytest.mark.parametrize(("dim", "cycles"), [(2, True), (64, True), (2, False), (5, False), (16, False)])
def test_infeasibility_certificates_sum_to_exactly_zero(dim, cycles, rng, tmp_path):
    path = tmp_path / "a.json"
    scores, chosen = infeasible(rng, dim, cycles)
    solution = ja.theory.max_margin(scores, chosen)
    assert solution.infeasible
    assert np.isnan(ja.theory.write_certificate(path, scores, chosen, solution).gap)
    claim = json.loads(path.read_text())
    w = [Fraction(0)] * dim
    for s, t, weight in claim["multipliers"]:
        w = [x + weight * y for x, y in zip(w, exact_difference(scores.keys, s, t), strict=True)]
    assert not any(w)
    assert check(path) == ""
    forger = Forger(path, rng)
    made = claim["multipliers"]
    forged = [
        {"multipliers": made[1:]},
        {"multipliers": [*made[:-1], [*made[-1][:2], made[-1][2] + 1]]},
        {"multipliers": [*made[:-1], [*made[-1][:2], -made[-1][2]]]},
        {"multipliers": [*made, made[0]]},
        {"multipliers": []},
        {"multipliers": [[t, s, x] for s, t, x in made]},
    ]
    # Other sequences may contain the reverse of a pair of the cycle, which is another proof.
    has_all = {(t, s) for s, t, _ in made} <= {(s, t) for s, t in pairs_with(scores.corpus, chosen)}
    refused = [bool(check(forger.written(**x))) for x in forged]
    refused[5] |= has_all
    assert all(refused), refused
    net = np.zeros(len(scores.keys))
    for s, t, x in made:
        net[[s, t]] += float(x), -float(x)
    assert net.any() or cycles  # in a cycle every key drops out of the sum
    for token in np.flatnonzero(net)[:1]:
        place = 32 + 8 * dim * int(token)
        moved = struct.pack("<d", np.nextafter(scores.keys[token, 0], np.inf))
        data = forger.data[:place] + moved + forger.data[place + 8 :]
        assert "is not 0" in check(forger.written(data_bytes=data, sealed=True))


def pairs_with(corpus, selection):
    """Return all pairs of a selected and another token."""
    bags, mask = corpus.bags, np.asarray(selection.mask)
    for n in range(corpus.num_examples):
        here = (np.asarray(bags.owner) == n)[:, None] & (np.asarray(bags.count) > 0)
        index = np.asarray(bags.index)
        yield from ((int(s), int(t)) for s in index[here & mask] for t in index[here & ~mask])


def test_infeasibility_certificate_is_rejected_for_separable_tokens(separable, rng, tmp_path):
    for number, problem in enumerate(separable):
        path = tmp_path / f"{number}.json"
        ja.theory.write_certificate(path, *problem)
        forger = Forger(path, rng)
        del forger.claim["p"]
        assert "is not 0" in check(forger.written())


def test_equal_keys_of_selected_and_unselected_tokens_are_infeasible(tmp_path):
    corpus = ja.data.from_sequences([[0, 1], [1, 2]], [1, -1], vocab_size=3)
    scores = ja.theory.Scores(np.array([[1.0, 0.3], [1.0, 0.3], [0.0, 1.0]]), corpus)
    chosen = ja.theory.selection_from_tokens(jax.numpy.asarray([True, False, True]), corpus)
    solution = ja.theory.max_margin(scores, chosen)
    assert solution.infeasible
    ja.theory.write_certificate(tmp_path / "a.json", scores, chosen, solution)
    assert check(tmp_path / "a.json") == ""
    assert json.loads((tmp_path / "a.json").read_text())["multipliers"] == [[0, 1, 1]]


def test_inexact_infeasibility_multipliers_are_rejected(rng, tmp_path):
    scores, chosen = infeasible(rng, 5, cycles=False)
    solution = ja.theory.max_margin(scores, chosen)
    wrong = solution.replace(pairs=solution.pairs[:-1], multipliers=solution.multipliers[:-1])
    with pytest.raises(ja.InputError, match="no exact multipliers were found"):
        ja.theory.write_certificate(tmp_path / "a.json", scores, chosen, wrong)


@pytest.mark.parametrize(
    "change", [{"scale": 0.99999999999999999}, {"gap": -1e-400}, {"gap": False}, {"gap": "0.\u0669"}]
)
def test_scale_and_gap_must_be_strings(separable, tmp_path, change):
    path = tmp_path / "a.json"
    ja.theory.write_certificate(path, *separable[0])
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert "not a number in a string" in check(path)
