import shutil
from pathlib import Path

import pandas as pd
import pytest

from jaxattn.engine.progress import Reporter
from jaxattn.errors import InputError
from jaxattn.paper import ITEMS, reproduce

TINY = (
    "model.dim=16",
    "seeds=2",
    "phases.joint.steps=4",
    "data.sequences=40",
    "data.test_sequences=20",
    "data.vocab_size=30",
    "data.relevant=20",
    "data.length=6",
)
RUN = [item for item in ITEMS if item.measure]


@pytest.fixture(scope="module")
def again(tmp_path_factory):
    """Run some items in tiny sizes."""

    def run(**options):
        options = {"out": out, "command": "jaxattn reproduce", "overrides": TINY} | options
        with Reporter(quiet=True) as reporter:
            return reproduce(reporter=reporter, **options)

    out = tmp_path_factory.mktemp("paper")
    return run


@pytest.fixture(scope="module")
def page(again):
    """The page after one item was run."""
    return again(only=["fig2_synthetic", "fig3_imdb"])


@pytest.mark.parametrize("scale", ["laptop", "full"])
@pytest.mark.parametrize("item", RUN, ids=lambda item: item.name)
def test_every_item_is_a_study_whose_cells_fit(item, scale):
    study = item.study(scale, Path("data"))
    assert study.name == item.name
    assert study.cells
    if item.needs != "nothing":
        place = study.config["data"].get("data_dir") or study.config["data"]["path"]
        assert Path(place).parts[0] == "data"


def test_names_are_distinct_and_every_item_says_what_it_compares():
    assert len({item.name for item in ITEMS}) == len(ITEMS)
    for item in ITEMS:
        assert (item.measure is None) == (item.elsewhere is not None)
        assert item.reports
        assert item.chosen
        assert item.compared


def test_every_item_has_a_row_and_one_was_run(page):
    assert page.summary["item"].tolist() == [item.name for item in ITEMS]
    verdicts = page.summary.set_index("item")["verdict"]
    assert verdicts["fig2_synthetic"] not in ("not run", "shown elsewhere")
    assert verdicts["v_with_p"] == "shown elsewhere"
    assert not page.failed


def test_missing_data_is_said_with_its_remedy(page):
    text = page.paths[0].read_text()
    part = text[text.index("## fig3_imdb") : text.index("## fig3_yelp")]
    assert "Not run: run `jaxattn reproduce --only fig3_imdb --data-dir DIR`, with DIR/tfds" in part
    assert page.summary.set_index("item")["verdict"]["fig3_imdb"] == "not run"


def test_the_page_holds_figure_table_and_numbers_and_no_place_of_this_machine(page):
    markdown, html = page.paths[0].read_text(), page.paths[1].read_text()
    assert "figures/fig2_synthetic.png" in markdown
    assert "data:image/png;base64," in html
    assert "Spearman of E·v and the bin centres" in html
    for text in (markdown, html.replace("base64,", "\n")):
        assert str(page.paths[0].parent) not in text
    numbers = pd.read_csv(page.paths[2])
    assert set(numbers["item"]) == {"fig2_synthetic"}
    assert len(numbers) == 4


def test_a_finished_item_is_not_run_again_and_the_page_is_the_same(page, again):
    before = [path.read_bytes() for path in page.paths]
    records = page.paths[0].parent / "runs" / "laptop" / "fig2_synthetic" / "records.parquet"
    changed = records.stat().st_mtime_ns
    assert [path.read_bytes() for path in again(only=["fig2_synthetic"]).paths] == before
    assert records.stat().st_mtime_ns == changed


def test_data_that_is_not_where_it_should_be_is_a_failure_with_a_row(again, tmp_path):
    page = again(out=tmp_path, only=["fig3_yelp"], data_dir=tmp_path / "none", overrides=())
    assert set(page.failed) == {"fig3_yelp"}
    assert "none" in page.failed["fig3_yelp"]
    assert "the run failed" in page.paths[0].read_text()


def test_an_item_that_does_not_fit_is_a_failure_that_names_the_remedy(again, tmp_path):
    page = again(out=tmp_path, only=["fig2_synthetic"], max_memory=1000)
    assert "--max-memory" in page.failed["fig2_synthetic"]


def test_an_unknown_item_is_named(again):
    with pytest.raises(InputError, match="fig9: no such item"):
        again(only=["fig9"])


def test_nothing_runs_in_a_folder_of_another_scale(page, again):
    before = {path: path.stat().st_mtime_ns for path in page.paths[0].parent.rglob("*")}
    with pytest.raises(InputError, match="holds results at laptop scale; add `--scale laptop`"):
        again(scale="full", only=["fig2_synthetic"])
    assert {path: path.stat().st_mtime_ns for path in page.paths[0].parent.rglob("*")} == before


def test_the_page_is_the_same_from_the_records_alone(page, again, tmp_path):
    shutil.copytree(page.paths[0].parent, tmp_path / "copy", ignore=shutil.ignore_patterns("runs"))
    copied = again(out=tmp_path / "copy", only=["fig3_imdb"])
    assert [path.read_bytes() for path in copied.paths[:3]] == [path.read_bytes() for path in page.paths[:3]]
