"""Sweep files: reading, overriding, extending, writing."""

import os
import re
import tempfile
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxattn as ja
from jaxattn.core.errors import UserCodeError
from jaxattn.lab.study import toml

SHIPPED = sorted((Path(__file__).parents[3] / "sweeps").glob("*.toml"))
SMALL = (Path(__file__).parents[2] / "sweeps" / "small.toml").read_text()
AXES = """
[axes]
model.dim = [8, 16]
"phases.query.step_size" = [0.1, 0.2, 0.3]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL + AXES)
    return path


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_sweeps_are_valid(path):
    assert ja.Study.read(path).name == path.stem


def test_cells_are_the_product_of_the_axes(file):
    cells = toml.read_sweep(file).cells
    assert [cell.number for cell in cells] == list(range(6))
    assert cells[4].settings == {"model.dim": 16, "phases.query.step_size": 0.2}
    assert cells[4].setting.model.dim == 16
    assert cells[4].setting.phases[1].step_size == 0.2
    assert cells[4].setting.phases[0].step_size == 50


def test_overrides_have_dotted_keys_and_toml_values(file):
    study = toml.read_sweep(
        file,
        [
            "data.length=7",
            "phases.query.train=['p', 'v']",
            "phases.0.step_size=1e3",
            "axes.model.dim=[4]",
            "dtype=float64",
            "data.kind=assumption1",
        ],
    )
    assert study.base.data.length == 7
    assert study.base.phases[1].train == ("p", "v")
    assert study.base.phases[0].step_size == 1000
    assert {cell.settings["model.dim"] for cell in study.cells} == {4}
    assert study.dtype == study.base.dtype == "float64"
    assert type(study.base.data).__name__ == "Assumption1"


ZIP = "\n[zip]\nphases.query.steps = [1, 2]\nmodel.dim = [8, 16]\n"
HALTON = "\n[halton]\npoints = 2\naxes.model.dim = {low = 1, high = 8, integer = true}\n"
BLOCK = """
[blocks.wide]
axes.model.dim = [64]
phases.query.steps = 3
[blocks.narrow]
halton.points = 2
halton.axes.model.dim = {low = 1, high = 8, integer = true}
phases.1.steps = 4
"""


@pytest.mark.parametrize(
    ("grid", "override", "option", "values"),
    [
        (AXES, "model.dim=32", "--axis model.dim=[...]", "[32]"),
        (AXES, "phases.1.step_size=1.0", "--axis phases.query.step_size=[...]", "[1.0]"),
        (ZIP, "model.dim=32", "--set zip.model.dim=[...]", "[32, 33]"),
        ("\n[[cells]]\nmodel.dim = 8\n", "model.dim=32", "--set cells=[...]", "[{model={dim=32}}]"),
        (
            HALTON,
            "model.dim=32",
            "--set halton.axes.model.dim={low=..., high=...}",
            "{low=9, high=12, integer=true}",
        ),
        (BLOCK, "model.dim=32", "--set blocks.wide.axes.model.dim=[...]", "[32]"),
        (BLOCK, "phases.query.steps=9", "--set blocks.wide.phases.query.steps=...", "9"),
    ],
)
def test_override_without_effect_raises(tmp_path, grid, override, option, values):
    path = tmp_path / "swept.toml"
    path.write_text(SMALL + grid)
    with pytest.raises(ja.InputError) as raised:
        toml.read_sweep(path, [override])
    assert str(raised.value).startswith(f"--set {override}: has no effect, because ")
    assert str(raised.value).endswith(f" is swept; use {option}")
    kind, _, key = option.partition("=")[0].partition(" ")
    changed = {"--set": ([f"{key}={values}"], []), "--axis": ([], [f"{key}={values}"])}[kind]
    assert toml.read_sweep(path, *changed).cells != toml.read_sweep(path).cells


def test_override_that_affects_only_some_cells_is_accepted(tmp_path):
    path = tmp_path / "swept.toml"
    path.write_text(SMALL + BLOCK.replace("axes.model.dim = [64]\n", ""))
    assert toml.read_sweep(path, ["model.dim=32"]).cells[0].setting.model.dim == 32
    path.write_text(SMALL + "\n[[cells]]\nmodel.dim = 8\n[[cells]]\nphases.query.steps = 2\n")
    assert [cell.setting.model.dim for cell in toml.read_sweep(path, ["model.dim=32"]).cells] == [8, 32]


@pytest.mark.parametrize(
    ("line", "override"),
    [
        ("axes.model.dim = [4, 8]", "axes={model={dim=[4, 8]}}"),
        (HALTON, "halton={points=2, axes={model={dim={low=1, high=8, integer=true}}}}"),
        ("cells = [{phases.query.steps = 3}]", "cells=[{phases={query={steps=3}}}]"),
        ("blocks.b.axes.model.dim = [4, 8]", "blocks.b={axes={model={dim=[4, 8]}}}"),
        ("blocks.b.axes.model.dim = [4, 8]", "blocks.b.axes.model.dim=[4, 8]"),
    ],
)
def test_grid_set_by_override_equals_grid_in_a_file(tmp_path, line, override):
    head, phases, rest = SMALL.partition("[data]")
    top, line = (line, "") if not line.startswith("\n") else ("", line)
    (tmp_path / "a.toml").write_text(f"{head}{top}\n{phases}{rest}{line}")
    (tmp_path / "b.toml").write_text(SMALL)
    cells = [
        toml.read_sweep(tmp_path / name, given).cells
        for name, given in (("a.toml", []), ("b.toml", [override]))
    ]
    assert [cell.settings for cell in cells[0]] == [cell.settings for cell in cells[1]] != [{}]
    assert [cell.config_hash for cell in cells[0]] == [cell.config_hash for cell in cells[1]]


def test_null_removes_a_key(file):
    study = toml.read_sweep(file, ["axes.model.dim=null", "data.test_sequences=null", "model.dim=32"])
    assert {cell.setting.model.dim for cell in study.cells} == {32}
    assert study.base.data.test_sequences == 0
    with pytest.raises(ja.InputError, match=r"--set data.tests=null: data.tests: not set"):
        toml.read_sweep(file, ["data.tests=null"])


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_byte_order_mark_is_ignored(file, ending):
    before = toml.read_sweep(file)
    file.write_text("\ufeff" + file.read_text(), encoding="utf-8", newline=ending)
    assert toml.read_sweep(file).config == before.config
    (file.parent / "more.toml").write_bytes(b'\xef\xbb\xbfextends = "small.toml"\nmodel.dim = 4\n')
    assert toml.read_sweep(file.parent / "more.toml").base.model.dim == 4


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_file_raises(file, encoding):
    file.write_bytes(file.read_text().encode(encoding))
    with pytest.raises(ja.InputError, match=r"small.toml: UTF-16 text.*; save it as UTF-8$"):
        toml.read_sweep(file)
    file.write_bytes(b"\xfe\xff" + file.read_bytes() if encoding == "utf-16-be" else file.read_bytes())
    with pytest.raises(ja.InputError, match=r"small.toml: UTF-16 text"):
        toml.read_sweep(file)


def test_missing_and_malformed_files_raise(tmp_path, file):
    with pytest.raises(ja.InputError, match=r"smal.toml: no such sweep file; did you mean .*small.toml"):
        toml.read_sweep(tmp_path / "smal.toml")
    file.write_text("name = 'x'\nseeds = = 3\n")
    with pytest.raises(ja.InputError, match=r"not valid TOML: .*at line 2, column 9\): seeds = = 3$"):
        toml.read_sweep(file)
    file.write_bytes(b"name = '\xe9'")
    with pytest.raises(ja.InputError, match=r"small.toml: not UTF-8 text \(.*\); save it as UTF-8"):
        toml.read_sweep(file)
    with pytest.raises(ja.InputError, match="cannot be read"):
        toml.read_sweep(tmp_path)


def test_sweep_file_can_extend_another(tmp_path):
    (tmp_path / "base.toml").write_text(SMALL + "[axes]\nmodel.dim = [8, 16]\n")
    child = tmp_path / "deep" / "child.toml"
    child.parent.mkdir()
    child.write_text(
        'extends = "../base.toml"\nname = "child"\nseeds = 5\n[phases.query]\nsteps = 7\n'
        "[axes]\nphases.embed.step_size = [1.0, 2.0]\n[halton]\npoints = 2\n"
        "[halton.axes]\nphases.query.step_size = {low = 0.1, high = 0.2}\n"
    )
    study = toml.read_sweep(child)
    query = study.base.phases[1]
    assert (study.name, study.seeds, query.steps, query.optimizer) == ("child", (0, 1, 2, 3, 4), 7, "sgd")
    assert len(study.cells) == 8
    assert "extends" not in study.config
    assert "extends" not in study.tree


def test_circular_or_missing_extends_raises(tmp_path):
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text('extends = "two.toml"')
    two.write_text('extends = "one.toml"')
    with pytest.raises(ja.InputError, match=r"one.toml: .*two.toml: extends: one.toml extends this"):
        toml.read_sweep(one)
    one.write_text('extends = "three.toml"')
    with pytest.raises(ja.InputError, match=r"one.toml: .*three.toml: no such sweep file"):
        toml.read_sweep(one)
    one.write_text("extends = 3")
    with pytest.raises(ja.InputError, match=r"extends: expected the path of a file, got 3"):
        toml.read_sweep(one)


def test_too_large_files_are_rejected(tmp_path):
    child, base = tmp_path / "child.toml", tmp_path / "base.toml"
    child.write_text('extends = "base.toml"')
    os.mkfifo(base)
    with pytest.raises(
        ja.InputError, match=r"base.toml: cannot be read \(not a regular file\); save the sweep to a file"
    ):
        toml.read_sweep(child)
    base.unlink()
    with open(base, "wb") as file:
        file.truncate(3 * 2**30)
    with pytest.raises(ja.InputError, match=r"too large for a sweep file \(3,072 MiB, more than 16 MiB\)"):
        toml.read_sweep(child)
    with pytest.raises(ja.InputError, match=r"/dev/zero: cannot be read"):
        toml.read_sweep("/dev/zero")


@pytest.mark.parametrize("path", ["x" * 5000, "a\\u0000b", "~nobody/x"])
def test_invalid_paths_raise(tmp_path, path):
    (tmp_path / "child.toml").write_text(f'extends = "{path}"')
    with pytest.raises(ja.InputError, match=r"cannot be read|no such sweep file"):
        toml.read_sweep(tmp_path / "child.toml")
    (tmp_path / "own.toml").write_text(SMALL.replace('"independent"', f'"{path}.py:Name"'))
    with pytest.raises(ja.InputError, match=r"no such file"):
        toml.read_sweep(tmp_path / "own.toml")


@pytest.mark.parametrize("kind", [":", "..:Name"])
def test_invalid_import_paths_raise(file, kind):
    with pytest.raises(ja.InputError, match=r"model.kind: .*expected package.module:Name, or a file"):
        toml.read_sweep(file, [f"model.kind='{kind}'"])


def test_error_names_the_command_line_option(file):
    with pytest.raises(ja.InputError, match=r"^--set model.dim: expected 'int' >= 1, got -4$"):
        toml.read_sweep(file, ["dtype=float64", "model.dim=-4"])
    with pytest.raises(
        ja.InputError, match=r"^--axis model.gain: 0.5 is listed twice; list each value once$"
    ):
        toml.read_sweep(file, [], ["model.gain=[0.5, 0.5]"])
    with pytest.raises(ja.InputError, match=f"^{re.escape(str(file))}: model: unknown key 'dimm'"):
        toml.read_sweep(file, ["model.dimm=3"])


def test_import_error_includes_the_location_in_the_file(file):
    (file.parent / "wrong.py").write_text("def f(:\n")
    with pytest.raises(UserCodeError, match=f"^{re.escape(str(file))}: loss.kind: wrong.py raised") as caught:
        toml.read_sweep(file, ["loss=wrong.py:f"])
    assert re.findall('File "(.*)"', caught.value.trace) == [str(file.parent / "wrong.py")]
    assert "def f(:" in caught.value.trace


def test_figure_requires_a_kind(file):
    for kind in ("[1]", "{x = 1}", "3"):
        with pytest.raises(ja.InputError, match=r"figures\[0\].kind: expected a name, got"):
            ja.Study.read(file, [f"figures=[{{kind = {kind}}}]"])


def test_long_chain_of_extends_raises(tmp_path):
    for number in range(30):
        (tmp_path / f"{number}.toml").write_text(f'extends = "{number + 1}.toml"')
    with pytest.raises(ja.InputError, match="chain of more than 20 files"):
        toml.read_sweep(tmp_path / "0.toml")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "phases.query.step_size=inf",
            r"phases\[1\].step_size: inf is not allowed here; use a finite number",
        ),
        ("axes.phases.query.step_size=[nan]", r"axes.phases.query.step_size\[0\]: nan is not allowed here"),
        ("seeds=abc", "seeds: expected a number, a range such as '0:20', or a list$"),
        ("name='a b'", "name: expected letters, digits, .* a letter or digit first$"),
        ("seeds=[2147483648]", r"seeds\[0\]: expected 'int' <= 2147483647, got 2147483648$"),
        ("data.vocab_size=2147483648", "data.vocab_size: expected 'int' <= 2147483647"),
        (
            "data.length=2000000000",
            "length: [23]0 sequences of 2,000,000,000 tokens total [46]0,000,000,000 tokens, more",
        ),
        (f"data.vocab_size={'9' * 5000}", "data.vocab_size: expected 'int', got 'str'"),
    ],
)
def test_values_out_of_range_raise(file, override, message):
    with pytest.raises(ja.InputError, match=message):
        toml.read_sweep(file, [override])


def test_axes_can_be_set_on_the_command_line(file):
    file.write_text(SMALL)
    study = toml.read_sweep(file, ["model.dim=9"], ["phases.query.steps=[1, 2]", "data.length=[3]"])
    assert [cell.settings for cell in study.cells] == [
        {"phases.query.steps": 1, "data.length": 3},
        {"phases.query.steps": 2, "data.length": 3},
    ]
    with pytest.raises(ja.InputError, match=r"--axis model.dim: expected key=value, for example --axis"):
        toml.read_sweep(file, [], ["model.dim"])


def test_reading_a_sweep_file_does_not_import_unreferenced_code(tmp_path):
    """Files next to a sweep file, or names in its texts, are not imported."""
    (tmp_path / "bomb.py").write_text("raise SystemExit('imported')\n")
    text = SMALL.replace('name = "small"', 'name = "small"\ndescription = "bomb.py:Bomb and bomb:Bomb"')
    (tmp_path / "small.toml").write_text(text)
    assert ja.Study.read(tmp_path / "small.toml").custom_kinds == []


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_written_sweep_file_has_the_hashes_of_its_study(path, tmp_path):
    before = ja.Study.read(path)
    after = ja.Study.read(before.write(tmp_path / "again.toml"))
    assert after.config_hash == before.config_hash
    assert after.config == before.config
    hashes = [cell.config_hash for cell in before.cells]
    assert [cell.config_hash for cell in after.cells] == hashes
    assert after.seeds == before.seeds


def test_unwritable_path_raises_a_one_line_error(tmp_path, study):
    with pytest.raises(ja.RunError, match=r"nowhere/x.toml: cannot be written \(No such file or directory\)"):
        study().write(tmp_path / "nowhere" / "x.toml")


@settings(max_examples=25, deadline=None)
@given(st.data())
@pytest.mark.more
def test_studies_with_random_values_survive_writing_and_reading(data):
    """Writing any valid study and reading it back gives the same study."""
    tree = tomllib.loads(SMALL)
    tree["seeds"] = data.draw(st.integers(1, 1000) | st.just("3:9") | st.just([5, 2]))
    tree["description"] = data.draw(st.text(max_size=20))
    values = data.draw(st.lists(st.floats(1e-300, 1e300), min_size=1, unique=True))
    tree["axes"] = {"phases.query.step_size": values}
    tree["phases"][0]["step_size"] = data.draw(st.floats(1e-300, 1e300))
    before = ja.Study.from_tables(tree)
    with tempfile.TemporaryDirectory() as folder:
        after = ja.Study.read(before.write(os.path.join(folder, "x.toml")))
    for name in ("config", "config_hash", "seeds", "description"):
        assert getattr(after, name) == getattr(before, name)
    assert [cell.config_hash for cell in after.cells] == [cell.config_hash for cell in before.cells]
