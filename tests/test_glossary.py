"""The glossary says what every metric of a study is."""

from pathlib import Path

from jaxattn.glossary import glossary


def test_the_page_is_made_of_the_probes_that_are_there():
    page = Path(__file__).parents[1] / "docs" / "metrics.md"
    assert page.read_text(encoding="utf-8") == glossary(), "python -m jaxattn.glossary > docs/metrics.md"


def test_what_a_study_records_is_in_it(study, tmp_path):
    text = glossary()
    probes = {"own": ["attention_entropy", "sharpness"], "max_margin": True}
    recorded = set(study(probes=probes).run(tmp_path, quiet=True).records["metric"])
    assert len(recorded) > 20
    bins = {name for name in recorded if name.startswith(("Ev_bin", "Ep_bin"))}
    assert {name for name in recorded - bins if f"`{name}`" not in text} == set()
