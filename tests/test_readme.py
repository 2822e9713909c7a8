import re
import shlex
import sys
from pathlib import Path

import pytest

from jaxattn import cli
from jaxattn.api import Study

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_notebook_cell_runs_and_its_shapes_are_as_stated():
    cell, _ = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict = {}
    exec(compile(cell, "README.md", "exec"), names)
    assert names["alpha"].shape == (64,)
    assert names["logits"].shape == (256,)
    assert names["params"].E.shape == (64, 1024)
    assert names["loss"].shape == ()
    assert names["corpus2"].num_sequences == 2
    assert names["mm"].feasible
    assert names["mm"].duality_gap < 1e-10
    assert 1 - names["cosine"] < 1e-5


def test_the_study_of_the_notebook_runs_and_attention_gets_sharper(tmp_path, monkeypatch):
    _, cell = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    exec(compile(cell, "README.md", "exec"), names)
    entropy = names["entropy"].groupby("cell")["mean"]
    assert (abs(entropy.first() - 2.08) < 0.02).all()  # log 8
    assert (entropy.last() < 0.5).all()
    assert names["sharper"] < -0.5
    assert names["wider"]["n"].eq(10).all()
    assert names["same"].records.equals(names["results"].records)


def test_the_sweep_file_of_the_readme_is_valid_with_its_points(tmp_path):
    text, halton = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "my_study.toml").write_text(f"{text}\n{halton}", encoding="utf-8")
    study = Study.read(tmp_path / "my_study.toml")
    assert study.name == "my_study"
    assert len(study.cells) == 16 * 3
    assert {type(cell.setting.phases[1].steps) for cell in study.cells} == {int}


def test_every_path_that_the_readme_links_to_exists():
    root = Path(__file__).parents[1]
    links = re.findall(r"\]\(((?!http)[^)#]+)\)", README)
    assert links
    assert [link for link in links if not (root / link).exists()] == []


@pytest.mark.slow
def test_the_model_of_the_readme_is_diagnosed(tmp_path, monkeypatch):
    (block,) = re.findall(r"```bash\n(python -c .*?)```", README, re.DOTALL)
    program, command = re.fullmatch(r"python -c '\n(.*)'\n(jaxattn diagnose .*)\n", block, re.DOTALL).groups()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweeps").symlink_to(Path(__file__).parents[1] / "sweeps")
    exec(compile(program, "README.md", "exec"), {})
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 0
    page = (tmp_path / "results" / "diagnosis" / "diagnosis.md").read_text(encoding="utf-8")
    assert page.count("is above the null band") == 5
