"""Import paths of sweep files, and messages for invalid ones."""

import sys

import pytest

import jaxattn as ja
from jaxattn.core.errors import UserCodeError
from jaxattn.lab.study.import_paths import ImportPaths


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import math\n\n\ndef double(x):\n    return 2 * x\n\n\nclass Outer:\n    inner = 3\n"
    )
    return tmp_path


def test_file_next_to_the_sweep_file_is_imported_once(folder):
    names = ImportPaths(folder)
    double = names.load("mine.py:double")
    assert double(4) == 8
    assert names.load("mine.py:Outer.inner") == 3
    assert sys.modules[double.__module__].Outer is names.load("mine.py:Outer")
    assert ImportPaths(folder).load("mine.py:double") is double


def test_files_with_the_same_name_are_separate_modules(folder, tmp_path):
    other = tmp_path / "deep"
    other.mkdir()
    (other / "mine.py").write_text("def double(x):\n    return x + x + 1\n")
    assert ImportPaths(folder).load("mine.py:double")(4) == 8
    assert ImportPaths(other).load("mine.py:double")(4) == 9
    assert ImportPaths(folder).load("deep/mine.py:double")(4) == 9


@pytest.fixture
def modules():
    """Remove the modules that a test imports."""
    before = set(sys.modules)
    yield
    for name in sys.modules.keys() - before:
        del sys.modules[name]


def item(folder, name, code, **files):
    """Write an item of a book: its code, and files next to it."""
    (folder / name).mkdir(exist_ok=True)
    for stem, content in {"code": code, **files}.items():
        (folder / name / f"{stem}.py").write_text(content)
    return ImportPaths(folder / name)


def test_file_can_import_from_its_folder_and_its_book(tmp_path, modules):
    (tmp_path / "shared_by_items.py").write_text("import math\n\ntwo = 2\n")
    code = "from shared_by_items import two\nfrom of_this_item import three\n\nfive = two + three\n"
    names = item(tmp_path, "item", code, of_this_item="three = 3")
    with pytest.raises(UserCodeError, match=r"code.py raised an exception on import") as caught:
        names.load("code.py:five")
    assert "No module named 'shared_by_items'" in caught.value.trace
    (tmp_path / "book.toml").touch()
    before = list(sys.path)
    assert names.load("code.py:five") == 5
    assert sys.path == before


def test_module_name_used_by_another_item_raises(tmp_path, modules):
    """The error is also raised for indirect imports, and for a second import."""
    (tmp_path / "book.toml").touch()
    code, between = "from between_{} import x\n", "from of_each_item import x\n"
    first, second = (
        item(tmp_path, f"item_{k}", code.format(k), of_each_item=f"x = {k}", **{f"between_{k}": between})
        for k in (1, 2)
    )
    assert first.load("code.py:x") == 1
    for _ in range(2):
        with pytest.raises(
            ja.InputError, match=r"code.py: imports of_each_item, but .*item_1/of_each_item.py"
        ):
            second.load("code.py:x")
    assert sys.modules["of_each_item"].x == 1
    # A file that does not import it is not affected, nor is the first item.
    (tmp_path / "item_2" / "other.py").write_text("y = 3\n")
    assert second.load("other.py:y") == 3
    assert first.load("code.py:x") == 1
    (tmp_path / "item_2" / "of_each_item.py").rename(tmp_path / "item_2" / "of_item_2.py")
    (tmp_path / "item_2" / "between_2.py").write_text("from of_item_2 import x\n")
    assert second.load("code.py:x") == 2


def test_item_file_takes_precedence_over_a_book_file(tmp_path, modules):
    (tmp_path / "book.toml").touch()
    (tmp_path / "in_both.py").write_text("x = 0\n")
    assert item(tmp_path, "without", "from in_both import x\n").load("code.py:x") == 0
    own = item(tmp_path, "with_own", "from in_both import x\n", in_both="x = 1")
    with pytest.raises(ja.InputError, match=r"imports in_both, but .*in_both.py is already imported"):
        own.load("code.py:x")


def test_import_leaves_sys_path_unchanged(folder):
    (folder / "of_a_namespace_test.py").write_text("three = 3\n")
    before = list(sys.path)
    names = ImportPaths(folder)
    assert names.load("math:cos")(0) == 1
    assert names.load("of_a_namespace_test:three") == 3
    assert sys.path == before


def test_objects_passed_in_python_take_precedence_over_imports():
    given = object()
    assert ImportPaths(given={"__main__:thing": given}).load("__main__:thing") is given


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "mine.py:dobule",
            r"mine.py:dobule: 'dobule' does not exist in mine.py; did you mean mine.py:double\?",
        ),
        ("mine.py:", r"'mine.py:': expected package.module:Name, or a file"),
        ("mien.py:double", r"mien.py: no such file; did you mean mine.py\?"),
        ("other/lab.py:double", r"other/lab.py: no such file; paths are relative to /"),
        (
            "nowhere.to_be.found:X",
            "no such module; install it, or give a file such as mine.py:Name",
        ),
        ("math:sinn", r"'sinn' does not exist in math; did you mean math:sin"),
    ],
)
def test_invalid_import_path_raises_a_one_line_error(folder, name, message):
    with pytest.raises(ja.InputError, match=message) as caught:
        ImportPaths(folder).load(name)
    assert "\n" not in str(caught.value)


def test_traceback_of_an_import_error_contains_only_the_imported_file(tmp_path):
    (tmp_path / "bad.py").write_text("def divide():\n    return 1 / 0\n\n\ndivide()\n")
    with pytest.raises(UserCodeError, match=r"bad.py raised an exception on import") as caught:
        ImportPaths(tmp_path).load("bad.py:divide")
    trace = caught.value.trace
    assert "return 1 / 0" in trace
    assert trace.endswith("ZeroDivisionError: division by zero\n")
    assert "import_paths.py" not in trace
    # Once it is fixed, it can be imported.
    (tmp_path / "bad.py").write_text("def divide():\n    return 1\n")
    assert ImportPaths(tmp_path).load("bad.py:divide")() == 1
    (tmp_path / "as_module_bad.py").write_text("def divide():\n    return 1 / 0\n\n\ndivide()\n")
    with pytest.raises(UserCodeError, match="as_module_bad raised an exception on import") as caught:
        ImportPaths(tmp_path).load("as_module_bad:x")
    assert caught.value.trace.count("as_module_bad.py") == 2
    assert "import_paths.py" not in caught.value.trace


def test_code_hash_covers_the_whole_file(folder):
    names = ImportPaths(folder)
    before = [names.code_hash(f"mine.py:{name}") for name in ("double", "Outer")]
    (folder / "mine.py").write_text((folder / "mine.py").read_text() + "\n\nchanged = True\n")
    after = [names.code_hash(f"mine.py:{name}") for name in ("double", "Outer")]
    assert not set(before) & set(after)
    assert names.code_hash("builtins:print") == names.code_hash("builtins:print")


def test_traceback_shows_frames_of_custom_files(folder):
    files = ImportPaths(folder).files(["mine.py:double", "math:cos"])
    assert str(folder / "mine.py") in files
    assert all("jaxattn" not in file or "test" in file for file in files)


def test_paths_are_relative_to_the_folder_of_the_sweep_file(folder):
    names = ImportPaths(folder)
    assert names.path("data/x.npy") == folder / "data" / "x.npy"
    assert str(names.path("/data/x.npy")) == "/data/x.npy"
    assert "~" not in str(names.path("~/x.npy"))


@pytest.mark.parametrize("first", ["data.py:Rows", "model.py:Rows"])
def test_file_that_is_both_named_and_imported_is_loaded_only_once(tmp_path, modules, first):
    names = item(tmp_path, "item", "", data="class Rows: pass", model="from data import Rows")
    names.load(first)
    assert names.load("data.py:Rows") is names.load("model.py:Rows")
