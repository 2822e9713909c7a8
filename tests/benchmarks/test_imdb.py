"""A folder without the reviews gives a one-line error before any measurement."""

import importlib
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["imdb_gradient", "vocabulary"])
def test_folder_without_reviews_raises_a_one_line_error(name, monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--data-dir", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(name).main()
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"error: argument --data-dir: data.dataset: no dataset imdb_reviews in {tmp_path}; " in said
    assert "; check --data-dir, or prepare the data" in said
