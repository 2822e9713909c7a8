import re
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from jaxattn.core.errors import InputError
from jaxattn.lab.books import book as books_module
from jaxattn.lab.books import findings, read_book, shapes

PAPER = read_book("paper")
TINY = Path(__file__).with_name("tiny")
CURVES = PAPER.shared.curves
RUN = [item for item in PAPER.items if item.measured]
BIN_CENTRES = np.array(CURVES["mlp_Ev"].centres)


def criteria(item):
    """Return the criteria of all measures of an item."""
    return {name: expected for measure in item.measured for name, expected in measure.criteria.items()}


def test_published_curves_contain_all_values_and_a_source():
    for curve in CURVES.values():
        assert len(curve.values) == len(curve.centres) == (19 if "Yelp" in curve.name else 20)
        assert np.isfinite(curve.values).all()
        assert (np.diff(curve.centres) > 0).all()
        assert "2505.17282" in curve.source


def test_bin_centres_match_the_published_values():
    assert BIN_CENTRES[0] == pytest.approx(-0.95, abs=0.005)
    assert BIN_CENTRES[-1] == pytest.approx(0.89, abs=0.006)
    # Twenty equal bins over [-1, 14/15].
    np.testing.assert_allclose(BIN_CENTRES, -1 + (14 / 15 + 1) * (np.arange(20) + 0.5) / 20, atol=1e-12)


@pytest.mark.parametrize("name", ["mlp_Ep", "two_layers_Ep"])
def test_published_scores_are_u_shaped(name):
    rows, centres = np.array([CURVES[name].values]), np.array(CURVES[name].centres)
    assert shapes.u_shape(rows, centres)[0] > 0.9
    assert abs(shapes.lowest(rows, centres)[0]) < 0.1


@pytest.mark.parametrize("name", ["mlp_imdb", "mlp_yelp", "two_layer_weights_imdb", "two_layer_weights_yelp"])
def test_criteria_match_published_curves(name):
    item = PAPER.item(name)
    ev, ep = item.published("Ev"), item.published("Ep")
    lowest = criteria(item)[f"where {ep.letters} is lowest"]
    assert lowest.around == round(ep.centres[int(np.argmin(ep.values))], 3) == float(lowest.published)
    length, first, last = shapes.longest_rise(np.array([ev.values]))
    rise = criteria(item)["bins in the longest rise of E·v*"]
    assert rise.around == length[0]
    numbers = [float(x) for x in rise.published.replace(",", "").split() if x != "to"]
    ends = [ev.centres[int(place[0])] for place in (first, last)]
    assert numbers == pytest.approx([length[0], *ends], abs=0.006)


def test_published_yelp_curves_change_sign_at_zero():
    of_item = criteria(PAPER.item("yelp4"))
    for name in ("yelp_Ev_2", "yelp_Ev_4"):
        curve = CURVES[name]
        signs = shapes.sign_change(np.array([curve.values]), np.array(curve.centres))[0]
        assert signs > 0.9
        published = of_item[
            f"{curve.letters}: bins whose sign is that of the posterior difference, published range"
        ]
        assert float(published.published) == pytest.approx(signs, abs=5e-4)


def test_items_use_the_published_bins_or_bins_that_contain_all_tokens():
    for item in PAPER.items:
        if item.elsewhere:
            continue
        probes = item.study("full").base.probes
        edges = np.linspace(probes.low, probes.high, probes.bins + 1)
        if item.name in ("topics", "xor", "negation", "yelp4", "k_class_law"):
            assert (probes.low, probes.high) == (-1, 1)
        if item.name.startswith(("fig", "mlp", "two_layer", "untrained", "one_step")):
            assert (edges[1:] + edges[:-1]) / 2 == pytest.approx(BIN_CENTRES)


def test_item_names_are_distinct_and_all_items_have_descriptions():
    assert len({item.name for item in PAPER.items}) == len(PAPER.items)
    # The list of book.toml must be complete.
    assert {item.name for item in PAPER.items} == {
        path.parent.name for path in PAPER.folder.glob("*/item.toml")
    }
    for item in PAPER.items:
        assert bool(item.measured) == (item.elsewhere is None) == (item.folder / "study.toml").is_file()
        assert item.reports
        assert item.chosen
        assert item.compared
        assert "{" not in item.reports + item.chosen + item.compared + item.reason
        for measure in item.measured:
            findings.load_measure(measure, item)


def test_book_is_found_by_name_or_folder(tmp_path, monkeypatch):
    shutil.copytree(TINY, tmp_path / "sweeps" / "small")
    monkeypatch.chdir(tmp_path)
    by_name, by_folder = read_book("small"), read_book(tmp_path / "sweeps" / "small")
    assert (by_name.name, by_name.location) == ("small", "sweeps/small")
    assert by_folder.location == "sweeps/small"
    assert read_book(tmp_path / "sweeps" / "small").items == by_folder.items
    assert read_book(TINY).location == "tiny"
    assert [item.name for item in by_name.items] == ["step", "own", "texts", "elsewhere"]
    assert PAPER.location == "jaxattn/lab/books/paper"


def test_book_without_an_item_list_contains_all_items(tmp_path):
    book = shutil.copytree(TINY, tmp_path / "tiny")
    text = (book / "book.toml").read_text()
    (book / "book.toml").write_text(text.replace('items = ["step", "own", "texts", "elsewhere"]', ""))
    assert [item.name for item in read_book(book).items] == ["elsewhere", "own", "step", "texts"]


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("book.toml", 'title = "A tiny book"', "", r"book.toml: .*missing required field `title`"),
        ("book.toml", '"step", ', '"stop", ', r"stop/item.toml: no such"),
        (
            "book.toml",
            '"step", ',
            '"step", "step", ',
            r"tiny: two items are named 'step'; rename one of them",
        ),
        (
            "book.toml",
            "items =",
            'table = "agreements.csv"\nitems =',
            r"book.toml: table: unknown table 'agreements.csv'; did you mean 'agreement.csv'\?",
        ),
        ("own/item.toml", "reports", 'name = "step"\nreports', r"two items are named 'step'; rename one"),
        ("step/item.toml", "chosen", "chose", r"step/item.toml: .*unknown field `chose`"),
        (
            "step/item.toml",
            "{note}",
            "{nte}",
            r"step/item.toml: {nte}: no such phrase; book.toml defines note",
        ),
        ("step/item.toml", "{note}", "{", r"step/item.toml: .*write literal braces as"),
        (
            "step/item.toml",
            "within = 0.3,",
            "",
            r"step/item.toml: measures\[1\]: expected either `at_least`, `at_most`, or `around`.*criteria",
        ),
        ("step/item.toml", "[[measures]]", "[measure]", r"step/item.toml: .*\bmeasure\b"),
        (
            "step/item.toml",
            "[measures.criteria]",
            "[criteria]",
            r"step/item.toml: .*\bcriteria\b",
        ),
        (
            "texts/item.toml",
            "criteria = {}",
            "",
            r"texts/item.toml: measures\[1\]: criteria is missing; add criteria for the findings",
        ),
        (
            "step/item.toml",
            'kind = "law"',
            "",
            r"step/item.toml: measures\[1\]: kind is missing; add the name of a measure, or your own",
        ),
        (
            "elsewhere/item.toml",
            "[elsewhere]",
            "measures = []\n[other]",
            r"elsewhere/item.toml: .*unknown field `other`",
        ),
        (
            "step/item.toml",
            'kind = "law"',
            'kind = "law"\nbasis = "promise"',
            r"step/item.toml: measures\[1\]: Invalid enum value 'promise'.*basis",
        ),
        (
            "step/item.toml",
            'kind = "law"',
            'kind = "law"\nmost_seeds = 0',
            r"step/item.toml: measures\[1\]: .*>= 1.*most_seeds",
        ),
        (
            "texts/item.toml",
            '"texts"',
            '"text"',
            r"texts/item.toml: needs: book.toml lacks 'text'; it defines texts",
        ),
        ("own/item.toml", "compared", 'curves = { Ev = "x" }\ncompared', r"curves: book.toml lacks 'x'"),
    ],
)
def test_malformed_book_raises_a_one_line_error_with_its_location(tmp_path, file, old, new, message):
    book = changed(tmp_path, file, old, new)
    with pytest.raises(InputError, match=message) as said:
        read_book(book)
    assert "\n" not in str(said.value)


def test_item_requires_either_measures_or_elsewhere(tmp_path):
    path = TINY / "step" / "item.toml"
    text = path.read_text(encoding="utf-8").partition("[[measures]]")
    for changed_text in (text[0], "".join(text) + '[elsewhere]\nwords = "x"\nlink = "x"\ncommand = "x"\n'):
        book = shutil.copytree(TINY, tmp_path / "tiny", dirs_exist_ok=True)
        (book / "step" / "item.toml").write_text(changed_text, encoding="utf-8")
        with pytest.raises(
            InputError, match=r"step/item.toml: requires \[\[measures\]\], or \[elsewhere\] if"
        ):
            read_book(book)


def changed(folder, file, old, new):
    """Copy the tiny book with a change."""
    book = shutil.copytree(TINY, folder / "tiny")
    text = (book / file).read_text(encoding="utf-8")
    assert old in text
    (book / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    return book


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"mine.py:least"',
            '"shape"',
            r"own/item.toml: measures: unknown kind 'shape'; use one of cells, .*FILE.py:NAME",
        ),
        (
            '"mine.py:least"',
            '"mine.py:lest"',
            r"'lest' does not exist in mine.py; did you mean mine.py:least",
        ),
        (
            "metric =",
            "metrics =",
            r"own/item.toml: measures: mine.py:least: .*; its parameters are \(results, item, \*, metric\), ",
        ),
        ("metric =", "at = 1\nmetric =", r"own/item.toml: measures: mine.py:least: .*'at'; its parameters"),
        ("metric =", 'studies = ["study", "study"]\nmetric =', r"mine.py:least: too many .*; its parameters"),
    ],
)
def test_invalid_measure_is_rejected(tmp_path, old, new, message):
    item = read_book(changed(tmp_path, "own/item.toml", old, new)).item("own")
    with pytest.raises(InputError, match=message) as said:
        findings.load_measure(item.measured[0], item)
    assert "\n" not in str(said.value)


def test_other_keys_of_a_measure_are_its_settings():
    (asked,) = read_book(TINY).item("own").measured
    assert (asked.kind, asked.studies, asked.basis) == ("mine.py:least", ("study",), "published")
    assert asked.settings == {"metric": "one_step_error"}


@pytest.fixture
def shared(tmp_path):
    """Build a book with a study that two items share; one of them also has its own study."""
    book = shutil.copytree(TINY, tmp_path / "shared")
    shutil.copy(book / "step" / "study.toml", book / "common.toml")
    for name, studies in (("step", ["common"]), ("own", ["more", "common"])):
        path = book / name / "item.toml"
        path.write_text(path.read_text().replace("[[measures]]", f"[[measures]]\nstudies = {studies}"))
    (book / "own" / "more.toml").write_text('extends = "../common.toml"\nname = "more"\n')
    return book


def test_studies_are_found_in_the_item_the_book_or_another_book(shared):
    step, own = read_book(shared).items[:2]
    assert [step.source("common").run, own.source("common").run, own.source("more").run] == [
        "common", "common", "own.more"
    ]  # fmt: skip
    assert step.source("common") == own.source("common")
    assert (own.source("more").own, own.source("common").own, own.source("study").run) == (True, False, "own")
    # Overrides of the item apply to its own studies only.
    assert len(step.study("laptop", "common").seeds) == len(step.study("full", "common").seeds) == 8
    assert len(step.study("laptop").seeds) == 6
    other = read_book(shared.parent / "shared").item("step").source("shared:own/more")
    assert (other.path.resolve(), other.run) == ((shared / "own" / "more.toml").resolve(), "shared.own.more")
    findings_study = read_book("claims").item("cover").source("findings:which_cover/claim")
    assert findings_study.path.is_file()
    assert findings_study.run == "findings.which_cover.claim"


def test_measures_limit_the_number_of_seeds_in_a_study(shared):
    path = shared / "step" / "item.toml"
    path.write_text(path.read_text().replace("[[measures]]", "[[measures]]\nmost_seeds = 5"))
    step, own = read_book(shared).items[:2]
    assert [len(step.study("full", "common", seeds=n).seeds) for n in (3, 5, 9)] == [3, 5, 5]
    assert len(own.study("full", "common", seeds=9).seeds) == 9


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "comon",
            r"step/item.toml: studies: comon.toml not found in the item's folder or in the book's; did",
        ),
        ("own", r"own.toml: an item is also named own; rename the study"),
        ("nowhere:study", r"nowhere: no such book \(no book.toml\); did you mean"),
    ],
)
def test_missing_study_is_rejected_before_the_run(shared, call, tmp_path, name, message):
    if name == "own":
        shutil.copy(shared / "common.toml", shared / "own.toml")
    path = shared / "step" / "item.toml"
    path.write_text(path.read_text().replace("'common'", f"'{name}'"))
    with pytest.raises(InputError, match=message):
        read_book(shared).item("step").source(name)
    out = tmp_path / "out"
    for words in ((), ("--check",)):
        status, _, said = call("reproduce", shared, "--only", "step", "--out", out, "--quiet", *words)
        assert status == 2
        (line,) = said.splitlines()
        assert re.search(message, line)
    assert not out.exists()


def test_cyclic_sweep_files_are_rejected(shared, call, tmp_path):
    (shared / "common.toml").write_text('extends = "own/more.toml"\nname = "common"\n')
    status, _, said = call("reproduce", shared, "--only", "step", "--out", tmp_path / "out", "--quiet")
    assert status == 2
    (line,) = said.splitlines()
    assert re.search(r"extends: \S+ extends this file in turn; remove one `extends`", line)
    assert not (tmp_path / "out").exists()


def test_other_books_are_looked_up_next_to_the_book_not_in_the_working_directory(tmp_path, monkeypatch):
    """The code of a book is imported, so the working directory is not trusted."""
    stranger = tmp_path / "sweeps" / "findings"
    (stranger / "which_cover").mkdir(parents=True)
    (stranger / "book.toml").write_text('title = "of a stranger"\nintroduction = ""\n')
    (stranger / "which_cover" / "claim.toml").write_text("of a stranger")
    (stranger / "which_cover" / "claim.py").write_text("raise AssertionError")
    monkeypatch.chdir(tmp_path)
    cover = read_book("claims").item("cover")
    assert tmp_path not in cover.source("findings:which_cover/claim").path.resolve().parents
    assert cover.study("full", "findings:which_cover/claim").name == "cover"
    findings.load_measure(cover.measured[0], cover)
    monkeypatch.setattr(books_module, "CHECKOUT", tmp_path / "nowhere")
    assert (
        cover.absent
        == "findings: this book exists only in a checkout of jaxattn, in sweeps/; run the command there"
    )
    # Books next to this book take precedence.
    shutil.copytree(TINY, tmp_path / "sweeps" / "mine")
    mine = read_book("mine").item("step").source("findings:which_cover/claim").path
    assert mine.resolve() == (stranger / "which_cover" / "claim.toml").resolve()


def test_missing_book_is_rejected(call, tmp_path):
    status, _, said = call("reproduce", "nowhere", "--out", tmp_path)
    assert status == 2
    (line,) = said.splitlines()
    assert re.search(
        "nowhere: no such book \\(no book.toml\\); known: claims, findings, neighbours, paper",
        line,
    )
    with pytest.raises(InputError, match=r"claim: no such book .*; did you mean 'claims'\?"):
        read_book("claim")
    with pytest.raises(InputError, match="no such book"):
        read_book(tmp_path)


@pytest.mark.parametrize("name", ["neighbours", "findings"])
def test_book_that_exists_only_in_a_checkout_is_rejected_elsewhere(call, tmp_path, monkeypatch, name):
    monkeypatch.setattr(books_module, "CHECKOUT", tmp_path / "nowhere")
    monkeypatch.chdir(tmp_path)
    status, _, said = call("reproduce", name)
    assert status == 2
    (line,) = said.splitlines()
    assert line.endswith(
        f"{name}: this book exists only in a checkout of jaxattn, in sweeps/; run the command there"
    )


def test_documented_book_format_is_valid(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "howto" / "books.md").read_text(encoding="utf-8")
    (shared, about), (code,) = (
        re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("toml", "python")
    )
    item = tmp_path / "two_steps"
    item.mkdir()
    (tmp_path / "book.toml").write_text(shared)
    (item / "item.toml").write_text(about)
    (item / "mine.py").write_text(code)
    (item / "study.toml").write_text(
        (TINY / "step" / "study.toml").read_text().replace('"step"', '"two_steps"')
    )
    (shown,) = read_book(tmp_path).items
    assert (
        shown.reports
        == "The error of the one-step law falls like d^(-1/2) (Magen et al., arXiv ..., Figure 2)."
    )
    assert len(shown.study("laptop").seeds) == 5
    for measure in shown.measured:
        findings.load_measure(measure, shown)
    own = {"kind": "mine.py:least", "settings": {"metric": "one_step_error"}}
    findings.load_measure(msgspec.structs.replace(shown.measured[0], **own), shown)
