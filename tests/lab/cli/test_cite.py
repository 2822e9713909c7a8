import json
import re
from pathlib import Path

import pytest

import jaxattn
from jaxattn.lab.cli import cite
from jaxattn.lab.storage import manifest


def keys(text):
    return re.findall(r"^@\w+\{(.*),$", text, re.M)


def test_without_a_study_it_is_the_software_and_its_paper(capsys):
    assert cite.cite(()) == 0
    text = capsys.readouterr().out
    assert keys(text) == ["jaxattn", "wu2025attention"]
    assert f"version = {{{jaxattn.__version__}}}" in text
    assert "eprint = {2505.17282}" in text
    assert ("url" in text) == bool(jaxattn.__url__)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"phases": [{"kind": "descent", "optimizer": "sgd"}]}, []),
        ({"phases": [{"kind": "descent", "optimizer": "adam"}]}, ["kingma2015adam"]),
        ({"axes": {"phases.query.method": ["polyak", "log_time"]}}, ["vasudeva2024implicit"]),
        ({"probes": {"max_margin": True}}, ["tarzanagh2023transformers"]),
        ({"data": {"kind": "topics", "label_noise": 0.0}}, ["lu2021dynamics"]),
        ({"data": {"dataset": "imdb_reviews:1.0.0"}}, ["maas2011learning"]),
        ({"data": {"kind": "independent", "label_noise": 0.1}}, ["sakamoto2024benign"]),
    ],
)
def test_methods_and_data_are_found_where_a_study_names_them(config, expected):
    assert cite.used({"name": "mine", "config": config}) == expected
    assert set(expected) <= cite.entries().keys()


def test_a_neighbour_is_known_by_its_code_and_not_by_a_name_that_anyone_may_give():
    code = {"../attention_svm/attention_svm.py:Attention": "", "rates.py:Steps": "", "rates.py:log_off": ""}
    expected = ["tarzanagh2023transformers", "vasudeva2024implicit", "wang2023achieving"]
    assert cite.used({"name": "mine", "config": {}, "code": code}) == expected
    assert cite.used({"name": "rates", "config": {}, "code": {}}) == []


def test_every_neighbour_that_holds_a_paper_up_is_known(neighbours):
    entries = cite.entries()
    for name, readme in neighbours.items():
        numbers = set(re.findall(r"arXiv (\d{4}\.\d{5})", readme))
        cited = [entries[key] for key in cite.NEIGHBOURS.get(name, ())]
        known = set(re.findall(r"eprint = \{(.*)\}", "\n".join(cited)))
        assert known <= numbers, name
        assert known, name


@pytest.fixture
def neighbours(pytestconfig):
    folder = pytestconfig.rootpath / "sweeps" / "neighbours"
    return {path.parent.name: path.read_text(encoding="utf-8") for path in folder.glob("*/README.md")}


def test_a_folder_is_cited_once_however_often_it_is_given(study, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    config = study(probes={"max_margin": True}).config
    known = {"name": "small", "command": "test", "cells": [{"cell": 0, "settings": {}}], "seeds": [0]}
    manifest.write(tmp_path / "run", known | {"config": config, "format": manifest.FORMAT})
    assert cite.cite((tmp_path / "run", tmp_path / "run")) == 0
    config = json.loads((tmp_path / "run" / "manifest.json").read_text(encoding="utf-8"))["config"]
    assert config["probes"]["max_margin"]
    assert keys(capsys.readouterr().out) == ["jaxattn", "wu2025attention", "tarzanagh2023transformers"]


def test_files_that_name_the_version_name_this_one():
    root = Path(jaxattn.__file__).parents[1]
    cff = (root / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {jaxattn.__version__}\n" in cff
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = [title for title in re.findall(r"^## (.*)$", changes, re.M) if title != "Unreleased"]
    assert versions[0] == jaxattn.__version__
