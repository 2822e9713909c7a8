"""Generated pages are up to date and complete."""

import importlib.util
import re
from pathlib import Path

import pytest

import jaxattn as ja
from jaxattn.core.settings import written
from jaxattn.lab import kinds
from jaxattn.lab.cli.commands import commands
from jaxattn.lab.study.concepts import CONCEPTS
from jaxattn.lab.study.registry import fields_of

DOCS = Path(__file__).parents[1] / "docs"
_spec = importlib.util.spec_from_file_location("pages_of_docs", DOCS / "pages.py")
pages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pages)
options_of = pages.command_line.__globals__["options_of"]


@pytest.mark.parametrize("name", pages.PAGES)
def test_generated_pages_are_up_to_date(name):
    made = pages.PAGES[name]()
    assert (DOCS / "reference" / f"{name}.md").read_text(encoding="utf-8") == made, "python docs/pages.py"


@pytest.mark.more
def test_metrics_page_lists_every_metric_of_a_study(study, tmp_path):
    text = pages.metrics()
    probes = {"own": ["attention_entropy", "sharpness"], "max_margin": True}
    recorded = set(study(probes=probes).run(tmp_path, quiet=True).records["metric"])
    assert len(recorded) > 20
    bins = {name for name in recorded if name.startswith(("Ev_bin", "Ep_bin"))}
    assert {name for name in recorded - bins if f"`{name}`" not in text} == set()


def test_page_on_text_data_lists_the_settings_of_every_reader():
    rows = [line.split(" | ") for line in pages.texts().splitlines() if line.startswith("| `")]
    for kind, target in kinds.classes(kinds.READERS).items():
        for field in fields_of(target):
            own = [row for row in rows if row[0] == f"| `{field.name}`"]
            of_kind = [row for row in own if len(row) == 3 or kind in row[1].split(", ")]
            assert len(of_kind) == 1, (kind, field.name)
            assert of_kind[0][-2] == written(field.default)


def test_the_page_on_sweep_keys_lists_every_key():
    """Return True if a key is in the table of its kind, or of all kinds of its concept."""
    text, texts = pages.sweep_keys(), pages.texts()
    for concept in CONCEPTS:
        of_concept = text.partition(f": {concept.location}\n")[2].partition("\n## ")[0]
        shared, *_ = of_concept.partition("\n### ")
        for kind, target in concept.known.items():
            own = of_concept.partition(f"\n### `{kind}`\n")[2].partition("\n### ")[0]
            where = texts if kind in kinds.READERS else shared + own
            assert [f.name for f in fields_of(target) if f"`{f.name}`" not in where] == [], kind


def test_the_command_line_page_describes_every_option():
    for name, call in commands().items():
        options = list(options_of(call))
        assert [one.usage for one in options if not one.meaning] == [], name


def test_the_command_line_page_matches_the_parser(call):
    _, out, _ = call("run", "--help")
    helped = set(re.findall(r"--[a-z][a-z-]+", out)) - {"--help"}
    assert helped == {one.usage.split()[0] for one in options_of(commands()["run"])} - {"SWEEP"}


def test_the_gallery_shows_every_kind_of_figure():
    shown = {each.study: [] for each in pages.GALLERY}
    for each in pages.GALLERY:
        asked = ja.Study.read(DOCS.parent / "sweeps" / f"{each.study}.toml").config["figures"][each.number]
        shown[each.study].append(asked["kind"])
        place = DOCS.parent / "results" / "published" / each.study / "figures" / f"{each.file}.png"
        assert place.name.startswith(asked["kind"])
        assert place.is_file()
    assert {kind for every in shown.values() for kind in every} == set(kinds.FIGURES)
