"""Pages made of classes are those that are there, and tell all that is to be told."""

import importlib.util
from pathlib import Path

import pytest

from jaxattn.core.docstrings import written
from jaxattn.data.readers import READERS
from jaxattn.study.registry import fields_of

DOCS = Path(__file__).parents[1] / "docs"
_spec = importlib.util.spec_from_file_location("pages_of_docs", DOCS / "pages.py")
pages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pages)


@pytest.mark.parametrize("name", ["metrics", "texts"])
def test_a_page_is_made_of_what_is_there(name):
    made = getattr(pages, name)()
    assert (DOCS / f"{name}.md").read_text(encoding="utf-8") == made, "python docs/pages.py"


@pytest.mark.more
def test_what_a_study_records_is_in_it(study, tmp_path):
    text = pages.metrics()
    probes = {"own": ["attention_entropy", "sharpness"], "max_margin": True}
    recorded = set(study(probes=probes).run(tmp_path, quiet=True).records["metric"])
    assert len(recorded) > 20
    bins = {name for name in recorded if name.startswith(("Ev_bin", "Ep_bin"))}
    assert {name for name in recorded - bins if f"`{name}`" not in text} == set()


def test_the_page_of_texts_is_made_of_the_kinds_that_are_there():
    rows = [line.split(" | ") for line in pages.texts().splitlines() if line.startswith("| `")]
    for kind, target in READERS.items():
        for field in fields_of(target):
            own = [row for row in rows if row[0] == f"| `{field.name}`"]
            of_kind = [row for row in own if len(row) == 3 or kind in row[1].split(", ")]
            assert len(of_kind) == 1, (kind, field.name)
            assert of_kind[0][-2] == written(field.default)
