"""The citation page lists every BibTeX entry, and every reproduction cites its paper."""

import re
from pathlib import Path

import optax
import pytest

import jaxattn
from jaxattn.lab.study.concepts import CONCEPTS

ROOT = Path(jaxattn.__file__).parents[1]
HOWTO = ROOT / "docs" / "howto"
PAGE = (HOWTO / "cite.md").read_text(encoding="utf-8")
BIBTEX = (HOWTO / "jaxattn.bib").read_text(encoding="utf-8")
ENTRIES = {entry.partition("{")[2].partition(",")[0]: entry for entry in BIBTEX.strip().split("\n\n")}
ROWS = [
    [re.findall(r"`([^`]+)`", cell) for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and "`" in line
]
NEIGHBOURS = sorted((ROOT / "sweeps" / "neighbours").glob("*/README.md"))


def test_bibtex_entries_are_well_formed():
    assert list(ENTRIES)[:2] == ["jaxattn", "wu2025attention"]
    for entry in ENTRIES.values():
        assert re.match(r"@\w+\{\w+,\n(  \w+ = \{.*\},\n)+\}$", entry), entry
        assert entry.count("{") == entry.count("}")


def test_citation_page_lists_all_entries():
    shown = PAGE.partition(':end-before: "')[2].partition('"')[0]
    assert BIBTEX.partition(shown)[0].strip().split("\n\n") == [
        ENTRIES["jaxattn"],
        ENTRIES["wu2025attention"],
    ]
    assert {key for _, keys in ROWS for key in keys} == ENTRIES.keys() - {"jaxattn", "wu2025attention"}


def test_settings_on_the_citation_page_exist():
    kinds = {kind for concept in CONCEPTS for kind in concept.known}
    assert {"joint_flow", "topics"} <= kinds
    named = {name.strip('"') for names, _ in ROWS for name in names if name.startswith('"')}
    text = (ROOT / "docs" / "reference" / "sweep_keys.md").read_text(encoding="utf-8")
    assert {name for name in named if name not in text and name not in dir(optax)} == set()


@pytest.mark.parametrize("readme", NEIGHBOURS, ids=lambda path: path.parent.name)
def test_readmes_cite_the_papers_they_reproduce(readme):
    keys = [key for names, keys in ROWS if readme.parent.name in names for key in keys]
    known = set(re.findall(r"eprint = \{(.*)\}", "\n".join(ENTRIES[key] for key in keys)))
    assert known
    assert known <= set(re.findall(r"arXiv (\d{4}\.\d{5})", readme.read_text(encoding="utf-8")))


def test_all_files_state_the_same_version():
    assert f"version = {{{jaxattn.__version__}}}" in ENTRIES["jaxattn"]
    cff = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {jaxattn.__version__}\n" in cff
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = [title for title in re.findall(r"^## (.*)$", changes, re.M) if title != "Unreleased"]
    assert versions[0] == jaxattn.__version__
