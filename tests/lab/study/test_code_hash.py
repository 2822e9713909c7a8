"""Hashes of custom code change with its dependencies, and with nothing else."""

import ast
import enum
import functools
import importlib
import shutil
import subprocess
import sys
import textwrap
import threading
import types
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.lab.study.code_hash import Unhashable, code_hash
from jaxattn.lab.study.import_paths import ImportPaths
from jaxattn.lab.study.source_text import reduced

CELL = """
import functools
import jax
import jax.numpy as jnp
import jaxattn as ja
import optax

SCALE = 2.0
TABLE = jnp.arange(3)
SIZES = {"a": [1, 2]}
OPTIMISER = optax.adam(0.1)
unread = 1

def helper(x):
    return [x + SIZES["a"][k] for k in range(2)]

@functools.lru_cache
def cached(x):
    return helper(x)

@jax.jit
def compiled(x):
    return x * TABLE

class Base:
    offset = 1

class Softened(ja.Loss, Base):
    softness: float = 0.5

    def __call__(self, outputs, targets):
        return self.scale(outputs) - jnp.asarray(cached(1)) + compiled(1)

    @staticmethod
    def scale(x):
        return SCALE * x

    @property
    def size(self):
        return OPTIMISER
"""


def notebook(code, name="__main__", **changes):
    """Execute a notebook cell; later cells may change the values that it reads."""
    module = types.ModuleType(name)
    exec(compile(textwrap.dedent(code), "<cell>", "exec"), vars(module))
    vars(module).update(changes)
    return module


@pytest.fixture
def cell(monkeypatch):
    def hashed(old="", new="", target="Softened", **changes):
        assert old in CELL
        module = notebook(CELL.replace(old, new) if old else CELL, "a_notebook_without_file", **changes)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return code_hash(getattr(module, target))

    return hashed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("self.scale(outputs) -", "self.scale(outputs) +"),
        ("SCALE * x", "SCALE + x"),
        ("SCALE = 2.0", "SCALE = 3.0"),
        ("jnp.arange(3)", "jnp.arange(3) + 1"),
        ('{"a": [1, 2]}', '{"a": [1, 3]}'),
        ("x + SIZES", "x - SIZES"),
        ("x * TABLE", "x / TABLE"),
        ("offset = 1", "offset = 2"),
        ("adam(0.1)", "adam(0.2)"),
        ("adam(0.1)", "sgd(0.1)"),
        ("range(2)", "range(1)"),
        ("return OPTIMISER", "return SIZES"),
    ],
)
def test_editing_a_notebook_class_changes_its_hash(cell, old, new):
    assert cell(old, new) != cell()


@pytest.mark.parametrize(
    ("old", "new"), [("", ""), ("unread = 1", "unread = 2"), ("class Base", "# a comment\nclass Base")]
)
def test_values_that_the_code_does_not_read_do_not_change_the_hash(cell, old, new):
    assert cell(old, new) == cell()


def test_global_with_the_same_name_as_an_attribute_is_ignored():
    first, second = (notebook("def f(x):\n    return x.shape\n", shape=k) for k in (1, 2))
    assert code_hash(first.f) == code_hash(second.f)


def test_changed_closures_and_defaults_change_the_hash():
    def made(power, shift=0.0):
        def f(x, y=shift):
            return x**power + y

        return f

    kinds = [notebook("def make(p):\n    return lambda x: x**p").make(p) for p in (2, 2, 3)]
    assert code_hash(kinds[0]) == code_hash(kinds[1]) != code_hash(kinds[2])
    assert code_hash(made(2)) == code_hash(made(2)) != code_hash(made(2, 1.0))


@pytest.mark.parametrize("wrap", ["", "@jax.jit\n"])
def test_declared_attributes_change_the_hash(wrap):
    def declared(attributes):
        text = f"import jax, jaxattn as ja\n\n@ja.declare({attributes})\n{wrap}def start(key, drawn):\n"
        return code_hash(notebook(text + "    return drawn").start)

    assert declared("") != declared("rotation_invariant=True")
    assert declared("check=lambda: 1") != declared("check=lambda: 2")


def test_editing_a_wrapped_function_changes_the_hash_of_the_wrapper():
    def wrapped(wrap, text):
        return code_hash(wrap(notebook(f"def f(x):\n    return x {text} 2.0").f))

    def doubled(f):
        @functools.wraps(f)
        def g(x):
            return 2 * f(x)

        return g

    for wrap in (jax.jit, jax.checkpoint, jax.custom_jvp, functools.cache, doubled):
        assert wrapped(wrap, "*") == wrapped(wrap, "*") != wrapped(wrap, "+")


def test_installed_functions_are_hashed_by_name(monkeypatch):
    lock = threading.Lock()

    @functools.wraps(np.mean)
    def decorated(*arguments):
        return np.median(*arguments, lock)

    monkeypatch.setattr(sys.modules[np.mean.__module__], "mean", decorated)
    assert code_hash(notebook("def f(x):\n    return mean(x)\n", mean=decorated).f)
    monkeypatch.undo()
    with pytest.raises(Unhashable, match="lock"):
        code_hash(notebook("def f(x):\n    return mean(x)\n", mean=decorated).f)


def test_custom_objects_are_hashed_by_class_and_state():
    code = """
        class A:
            def __init__(self, x):
                self.x = x

            def f(self):
                return self.x {}

        a = A({})

        def g():
            return a.f()
    """
    one, same, other, edited = (
        code_hash(notebook(code.format(*x)).g) for x in (("+ 1", 1), ("+ 1", 1), ("+ 1", 2), ("- 1", 1))
    )
    assert one == same
    assert len({one, other, edited}) == 3


@pytest.mark.parametrize("value", [threading.Lock(), [threading.Lock()], np.array([threading.Lock()])])
def test_unhashable_values_are_reported(value):
    module = notebook("def f(x):\n    return x, VALUE\n", VALUE=value)
    with pytest.raises(Unhashable, match=r"^VALUE"):
        code_hash(module.f)


def test_prng_keys_and_recursive_values_can_be_hashed():
    loop = [1]
    loop.append(loop)
    hashes = [
        code_hash(notebook("def f(x):\n    return x, VALUE\n", VALUE=value).f)
        for value in (loop, jax.random.key(0), jax.random.key(1), {"b", "a"})
    ]
    assert len(set(hashes)) == 4


@pytest.fixture
def lab(tmp_path):
    """Write files of a user: one that the study refers to, and its imports."""
    tmp_path = tmp_path / "lab"
    tmp_path.mkdir()
    files = {
        "named.py": "import os\nimport lab_first\nfrom lab_pack.sub import two\n"
        "GIVEN = float(os.environ.get('GIVEN', 1))\n_CACHE = {}\n\n\n"
        "def late():\n    import lab_late\n    from lab_lazy.inner import three\n\n\n"
        "def f(x):\n    _CACHE[x] = 1\n    return lab_first.one() + two + GIVEN\n",
        "lab_first.py": "import lab_second\n\n\ndef one():\n    return lab_second.ONE\n",
        "lab_second.py": "ONE = 1\n",
        "lab_late.py": "LATE = 1\n",
        "lab_pack/__init__.py": "",
        "lab_pack/sub.py": "from .deep import two\n",
        "lab_pack/deep.py": "two = 2\n",
        "lab_lazy/__init__.py": "",
        "lab_lazy/inner.py": "three = 3\n",
        "lab_unused.py": "",
    }
    for package in ("lab_pack", "lab_lazy"):
        (tmp_path / package).mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("lab_")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("file", "is_part"),
    [
        ("named.py", True),
        ("lab_first.py", True),
        ("lab_second.py", True),
        ("lab_late.py", True),
        ("lab_pack/__init__.py", True),
        ("lab_pack/deep.py", True),
        ("lab_lazy/inner.py", True),
        ("lab_unused.py", False),
    ],
)
def test_editing_an_imported_local_module_changes_the_hash(lab, file, is_part):
    names = ImportPaths(lab)
    before = names.code_hash("named.py:f")
    (lab / file).write_text((lab / file).read_text() + "\nCHANGED = 1\n")
    assert (names.code_hash("named.py:f") != before) == is_part


@pytest.mark.parametrize("load_first", [True, False])
def test_editing_an_imported_book_file_changes_the_hash(lab, load_first):
    """Indirect imports count too, whether they are loaded already or only when a function runs."""
    (lab / "book.toml").touch()
    (lab / "item").mkdir()
    late = "def f():\n    import lab_first\n    return lab_first.one()\n"
    early = "import lab_first\n\n\ndef f():\n    return lab_first.one()\n"
    (lab / "item" / "named.py").write_text(early if load_first else late)
    names = ImportPaths(lab / "item")
    hashes = [names.code_hash("named.py:f")]
    for file in ("lab_first.py", "lab_second.py", "lab_unused.py"):
        (lab / file).write_text((lab / file).read_text() + "\nCHANGED = 1\n")
        hashes.append(names.code_hash("named.py:f"))
    assert len(set(hashes[:3])) == 3
    assert hashes[3] == hashes[2]


TEXT = {
    "named.py": [
        ("def f(x):\n", 'def f(x):\n    """Compute f."""\n'),
        ("_CACHE = {}", '_CACHE = {}  # by x\n"""Results."""'),
        ("lab_first.one() + two", "(\n        lab_first.one()\n        + two\n    )"),
    ],
    "lab_first.py": [("import lab_second", '"""First."""\n\nimport lab_second')],
    "lab_pack/deep.py": [("two = 2", "# Not one.\ntwo   = 2")],
}


def edited(lab, folder, file, edits):
    """Return the hash of the code in a new folder, where one file is edited."""
    shutil.copytree(lab, lab.with_name(folder))
    for name in [name for name in sys.modules if name.startswith("lab_")]:
        del sys.modules[name]
    path = lab.with_name(folder) / file
    for old, new in edits:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
    return ImportPaths(path.parents[file.count("/")]).code_hash("named.py:f")


@pytest.mark.parametrize(("file", "edits"), TEXT.items())
def test_comments_formatting_and_docstrings_do_not_change_the_hash(lab, file, edits):
    assert edited(lab, "old", file, []) == edited(lab, "new", file, edits)


@pytest.mark.parametrize("reader", ["lab_first.one.__doc__", "inspect.getdoc(lab_first.one)"])
def test_docstrings_change_the_hash_of_code_that_reads_docstrings(lab, reader):
    before = edited(lab, "new", "named.py", [("_CACHE[x] = 1", f"_CACHE[x] = {reader}")])
    docstring = [("def one():\n", 'def one():\n    """One."""\n')]
    assert edited(lab.with_name("new"), "newer", "lab_first.py", docstring) != before


@pytest.mark.parametrize("reads", [True, False])
def test_docstrings_of_a_notebook_change_the_hash_only_if_they_are_read(reads):
    code = "def f(x):\n    '''{}'''\n    return 'f', x\n\ndef g(x):\n    return f(x), {}\n"
    reader = "f.__doc__" if reads else "f.__name__"
    one, other = (code_hash(notebook(code.format(text, reader)).g) for text in ("One.", "Two."))
    assert (one != other) == reads
    constants = {code_hash(notebook(code.format("f", reader).replace("'f', x", y)).g) for y in ("'f'", "'g'")}
    assert len(constants) == 2


STATEMENTS = """
def f(a, *b, c: int = 1, **d) -> float:
    with open(a) as one, open("é") as two:
        x = [y for y in b if y not in {1, 2.0, 1j, ..., None, True}]
    return f"{x!r:>{c}} {d}" "and" + g(*b, **d)[1:, ::2] if x else lambda: (yield)
"""
EDITS = [
    ("*b, c", "b, *, c"), ("c: int", "c"), ("= 1", "= 2"), ("**d)", "d)"), ("-> float", ""), ("as one", ""),
    ('"é"', "'é'"), ('"é"', '"e"'), ("not in", "in"), ("2.0", "2"), ("1j", "1"), ("...", "None"),
    ("!r", ""), (":>", ":<"), (" {d}", ""), ('"and"', 'b"and"'), ("+", "-"), ("::2", "::"), ("(*b", "(b"),
    ("[1:, ", "["), ("lambda: ", ""), ('"and"', "'and'"), ("    ", "\t"), ("x", "z"), ("1:,", "1: ,"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), EDITS)
def test_reduced_source_differs_exactly_if_the_syntax_tree_does(old, new):
    def trees(text):
        try:
            return ast.dump(ast.parse(text)), reduced(text.encode())
        except SyntaxError:
            return text, text

    (one, short), (other, edited) = trees(STATEMENTS), trees(STATEMENTS.replace(old, new))
    assert (one == other) == (short == edited)


def test_reduced_source_has_no_empty_field_and_only_ascii_characters():
    """Versions of Python add empty fields, and differ in which characters `repr` escapes."""
    assert "type_params" not in reduced(STATEMENTS.encode()).decode()
    assert reduced('x = "\u200b\U0001fae8é"'.encode()).isascii()


def test_numbers_too_long_for_repr_can_be_hashed():
    assert reduced(f"x = 0x{'f' * 9000}".encode()) != reduced(f"x = 0x{'f' * 8999}".encode())


@pytest.mark.parametrize("base", ["(NamedTuple)", "(enum.Enum)", ""])
def test_generated_methods_of_a_class_in_a_file_do_not_change_its_hash(lab, base):
    """Python 3.13 generates `__replace__`, for example."""
    decorator = "" if base else "@dataclasses.dataclass\n"
    (lab / "lab_kind.py").write_text(
        "import dataclasses, enum\nfrom typing import NamedTuple\n\nGIVEN = 1\n\n"
        f"{decorator}class Kind{base}:\n    x: int = 1\n    def f(self):\n        return GIVEN\n"
    )
    kind = ImportPaths(lab).load("lab_kind.py:Kind")
    before = code_hash(kind)
    kind.generated = eval("lambda self: 1", {"__name__": kind.__module__})
    kind.copied = enum.Enum.__dict__["__reduce_ex__"]
    assert code_hash(kind) == before
    sys.modules[kind.__module__].GIVEN = 2
    assert code_hash(kind) != before


def test_values_of_globals_read_from_the_environment_change_the_hash(lab):
    names = ImportPaths(lab)
    f = names.load("named.py:f")
    before = names.code_hash("named.py:f")
    f(2)  # This call fills a cache.
    assert names.code_hash("named.py:f") == before
    f.__globals__["GIVEN"] = 2.0
    assert names.code_hash("named.py:f") != before


@pytest.mark.more
def test_hash_is_the_same_in_every_process():
    read = f"from jaxattn.lab.study.code_hash import code_hash\nexec({CELL!r})\nprint(code_hash(Softened))"
    found = {
        subprocess.run(
            [sys.executable, "-c", read],
            capture_output=True, text=True, check=True,
        ).stdout
        for _ in range(2)
    }  # fmt: skip
    assert len(found) == 1


MODULE = """
import functools
import jax
import {helper}

@jax.jit
def scaled(x):
    return {helper}.doubled(x) * 1.0

class Model:
    @property
    def width(self):
        return 8

    @staticmethod
    def names():
        return "a" in {{"a", "b", "c"}}
"""
HELPER = "def doubled(x):\n    return 2 * x\n"


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Return a module that imports a helper, both of which tests may change."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "helper_of_hash.py").write_text(HELPER)
    (tmp_path / "mine_of_hash.py").write_text(MODULE.format(helper="helper_of_hash"))
    importlib.invalidate_caches()
    yield importlib.import_module("mine_of_hash")
    for name in ("mine_of_hash", "helper_of_hash"):
        sys.modules.pop(name, None)


def edit(module, before, after):
    path = Path(module.__file__)
    content = path.read_text()
    assert before in content
    path.write_text(content.replace(before, after))


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [("* 1.0", "* 3.0", "scaled"), ("return 8", "return 9", "width"), ('"c"}', '"d"}', "names")],
)
def test_code_that_changed_since_its_import_is_refused(imported, before, after, name):
    code_hash(imported.scaled)
    edit(imported, before, after)
    for target in (imported.scaled, imported.Model):
        with pytest.raises(
            ja.InputError, match=f"mine_of_hash.py: has changed since .*{name}.*restart Python"
        ):
            code_hash(target)
    importlib.reload(imported)
    code_hash(imported.scaled)


def test_helper_that_changed_since_its_import_is_refused(imported):
    before = code_hash(imported.scaled)
    helper = sys.modules["helper_of_hash"]
    edit(helper, "2 * x", "3 * x")
    with pytest.raises(
        ja.InputError, match=r"helper_of_hash.py: has changed since it was imported \(doubled\)"
    ):
        code_hash(imported.scaled)
    importlib.reload(helper)
    assert code_hash(imported.scaled) != before


def test_class_from_before_a_reload_is_refused(imported):
    old = imported.Model
    edit(imported, "return 8", "return 9")
    importlib.reload(imported)
    code_hash(imported.Model)
    with pytest.raises(ja.InputError, match=r"Model\.width"):
        code_hash(old)


def test_other_changes_of_an_imported_file_are_not_refused(imported):
    code_hash(imported.scaled)
    edit(
        imported,
        "import functools\n",
        "import functools\n\n# A comment, and a new function.\n\ndef new():\n    pass\n",
    )
    code_hash(imported.scaled)
