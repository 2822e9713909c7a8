import json
import shutil
import sys
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jaxattn as ja
from jaxattn.lab import kinds
from jaxattn.lab.texts import text as text_module
from jaxattn.lab.texts.labelled import plain_text

TRAIN = [
    ("Good, “very” good\nfilm<br /><br />", 1),
    ('a "bad" film, isn\'t it', 0),
    ("été", 1),
    ("bad", 0),
]
TEST = [("bad\r\nfilm", 0), ("good", 1)]


def write_parquet(path, rows, columns=("text", "label"), **types):
    values = zip(*rows, strict=True) if rows else [[] for _ in columns]
    table = pa.table(
        {name: pa.array(list(v), types.get(name)) for name, v in zip(columns, values, strict=True)}
    )
    pq.write_table(table, path)
    return str(path)


def write_csv(path, rows, columns=("text", "label"), delimiter=",", encoding="utf-8"):
    def field(value):
        return '"' + str(value).replace('"', '""') + '"'

    lines = [delimiter.join(map(field, row)) for row in [columns, *rows]]
    path.write_bytes(("\n".join(lines) + "\n").encode(encoding))
    return str(path)


def write_jsonl(path, rows, columns=("text", "label"), encoding="utf-8"):
    lines = [json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) for row in rows]
    path.write_bytes(("\n".join(lines) + "\n").encode(encoding))
    return str(path)


def write_lines(path, rows, encoding="utf-8", separator=" "):
    path.write_bytes("".join(f"{label}{separator}{text}\n" for text, label in rows).encode(encoding))
    return str(path)


def write_folder(path, **splits):
    for split, rows in splits.items():
        for i, (content, label) in enumerate(rows):
            file = path / split / str(label) / f"{i}_7.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def write_tfds(path, dataset="tiny_reviews", **splits):
    """Prepare a data set with tensorflow-datasets."""
    import tensorflow_datasets as tfds

    class Written(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        name = dataset
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {"text": tfds.features.Text(), "label": tfds.features.ClassLabel(num_classes=2)}
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(features), disable_shuffling=True
            )

        def _split_generators(self, _):
            return {split: self._generate_examples(rows) for split, rows in splits.items()}

        def _generate_examples(self, rows):
            for i, (content, label) in enumerate(rows):
                yield i, {"text": content, "label": label}

    download = tfds.download.DownloadConfig(try_download_gcs=False)
    Written(data_dir=path, file_format="array_record").download_and_prepare(download_config=download)
    return str(path)


def rows(source, split="train"):
    return [(text, plain_text(label)) for _, text, label in source.read(split).rows]


def records(source, split="train"):
    return [(place, text, plain_text(label)) for place, text, label in source.read(split).rows]


def message(action):
    with pytest.raises(ja.InputError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


WRITERS = {ja.texts.Parquet: write_parquet, ja.texts.Csv: write_csv, ja.texts.Jsonl: write_jsonl}
tables = pytest.mark.parametrize("kind", WRITERS)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return write_tfds(tmp_path_factory.mktemp("tfds"), train=TRAIN, test=TEST)


def make(kind, path, prepared):
    if kind is ja.texts.Tfds:
        return ja.texts.Tfds(dataset="tiny_reviews", data_dir=prepared)
    if kind is ja.texts.Folder:
        # Files are listed by class, so the rows are written in that order.
        named = {
            split: sorted(((text, ("neg", "pos")[y]) for text, y in data), key=lambda row: row[1])
            for split, data in (("train", TRAIN), ("test", TEST))
        }
        return ja.texts.Folder(path=write_folder(path / "reviews", **named))
    if kind is ja.texts.Lines:
        # One line holds one text.
        split = [[(" ".join(text.splitlines()), y) for text, y in data] for data in (TRAIN, TEST)]
        return ja.texts.Lines(
            path=write_lines(path / "train", split[0]), test_path=write_lines(path / "b", split[1])
        )
    write = WRITERS[kind]
    return kind(path=write(path / "train", TRAIN), test_path=write(path / "test", TEST))


@pytest.mark.parametrize(
    "kind", [ja.texts.Tfds, ja.texts.Parquet, ja.texts.Csv, ja.texts.Jsonl, ja.texts.Lines, ja.texts.Folder]
)
class TestEveryKind:
    @pytest.fixture
    def source(self, kind, tmp_path, prepared):
        return make(kind, tmp_path, prepared)

    @pytest.mark.parametrize(("split", "written"), [("train", TRAIN), ("test", TEST)])
    def test_rows_are_read_as_written(self, source, split, written):
        number = {0: 0, 1: 1, "neg": 0, "pos": 1}
        read = [(text, number[label]) for text, label in rows(source, split)]
        if isinstance(source, ja.texts.Folder):
            written = sorted(written, key=lambda row: row[1])
        if isinstance(source, ja.texts.Lines):
            written = [(" ".join(text.splitlines()), y) for text, y in written]
        assert read == written
        assert source.read(split).total in (len(written), None)
        assert source.splits == ("train", "test")

    def test_corpora_match_the_rows(self, source, tmp_path):
        train, test, vocabulary, _ = text_module.load_text(source, cache_dir=tmp_path / "cache")
        assert vocabulary.tokens[:3] == ("bad", "film", "good")
        assert sorted(train.targets.tolist()) == [-1, -1, 1, 1]
        assert sorted(test.targets.tolist()) == [-1, 1]

    def test_files_returns_the_same_readable_files_on_every_call(self, source, tmp_path):
        assert source.files()
        assert source.files() == source.files()
        for path in source.files().values():
            with open(path, "rb") as file:
                assert file.read()

    def test_the_test_split_is_optional(self, source):
        fields = {name: getattr(source, name) for name in source.__struct_fields__}
        alone = type(source)(**fields | {"test": ""})
        assert alone.splits == ("train",)

    def test_settings_are_validated_on_reading(self, source):
        kind, fields = type(source), msgspec.to_builtins(source)
        assert kinds.load_kind(kinds.READERS[kind.__name__.lower()]) is kind
        assert msgspec.convert(fields, kind) == source
        for wrong, says in (
            ({"spelling": 1}, "unknown field `spelling`"),
            ({"min_count": 0}, r"\$.min_count"),
            ({"max_vocab": 0}, r"\$.max_vocab"),
            ({"max_length": 0}, r"\$.max_length"),
            ({"empty": "skip"}, r"\$.empty"),
            ({"labels": ["a"]}, r"\$.labels"),
            ({"train": ""}, r"\$.train"),
            ({"class_names": ["a", ""]}, r"\$.class_names"),
        ):
            with pytest.raises(msgspec.ValidationError, match=says):
                msgspec.convert(fields | wrong, kind)
        for wrong, says in (
            ({"labels": ["a", "b", "a"]}, "'a' occurs twice"),
            ({"labels": [1, 2], "ignore_labels": [2]}, "2 occurs twice"),
            ({"labels": [1, "1"]}, "'1' occurs twice"),
            (
                {"labels": [3, 4], "class_names": ["a"]},
                "class_names: 1 names for 2 labels; expected one per label, in",
            ),
            ({"labels": [3, 4], "class_names": []}, "class_names: 0 names for 2 labels"),
            ({"labels": [3, 4], "class_names": ["a", "a"]}, "class_names: 'a' occurs twice"),
        ):
            with pytest.raises(ja.InputError, match=says):
                msgspec.convert(fields | wrong, kind).check()


class TestTfds:
    def test_tensorflow_is_not_required(self, prepared):
        assert rows(ja.texts.Tfds(dataset="tiny_reviews", data_dir=prepared)) == TRAIN
        assert "tensorflow" not in sys.modules

    def test_configurations_versions_and_slices_can_be_selected(self, prepared):
        source = ja.texts.Tfds(
            dataset="tiny_reviews:1.0.0", data_dir=prepared, train="train[1:3]", test="train[:1]"
        )
        assert rows(source) == TRAIN[1:3]
        assert rows(source, "test") == TRAIN[:1]

    def test_rows_are_read_in_chunks(self, tmp_path):
        many = [(f"text {i}", i % 2) for i in range(1100)]
        source = ja.texts.Tfds(dataset="many", data_dir=write_tfds(tmp_path, "many", train=many))
        read = source.read("train")
        assert read.total == 1100
        assert list(read.rows) == [(f"row {i}", text, label) for i, (text, label) in enumerate(many)]

    def test_data_folder_has_a_default(self, prepared, monkeypatch, tmp_path):
        monkeypatch.setenv("TFDS_DATA_DIR", prepared)
        assert rows(ja.texts.Tfds(dataset="tiny_reviews")) == TRAIN
        monkeypatch.delenv("TFDS_DATA_DIR")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert f"{tmp_path}/tensorflow_datasets" in message(ja.texts.Tfds(dataset="tiny_reviews").files)

    def test_second_load_does_not_import_tensorflow_datasets(self, prepared, tmp_path, monkeypatch):
        source = ja.texts.Tfds(dataset="tiny_reviews", data_dir=prepared)
        first = text_module.load_text(source, cache_dir=tmp_path)
        monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
        assert text_module.load_text(source, cache_dir=tmp_path).vocabulary == first.vocabulary

    def test_data_that_are_not_prepared_are_rejected(self, tmp_path):
        said = message(ja.texts.Tfds(dataset="imdb_reviews", data_dir=str(tmp_path)).files)
        assert f"no dataset imdb_reviews in {tmp_path}" in said
        assert "data.data_dir" in said
        assert 'download_and_prepare(file_format="array_record")' in said

    @pytest.mark.parametrize("fields", [{"train": "dev"}, {"dataset": "tiny_reviews:2.0.0"}])
    def test_missing_split_or_version_is_rejected(self, prepared, fields):
        source = ja.texts.Tfds(**{"dataset": "tiny_reviews", "data_dir": prepared} | fields)
        said = message(lambda: source.read("train"))
        assert said.startswith("data.train: cannot open split")
        if "train" in fields:
            assert "['train', 'test']" in said

    def test_nothing_is_downloaded(self, tmp_path, monkeypatch):
        import tensorflow_datasets as tfds

        def refuse(*_, **__):
            raise AssertionError("it would download")

        monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", refuse)
        (tmp_path / "imdb_reviews" / "plain_text" / "0.0.1").mkdir(parents=True)
        said = message(lambda: ja.texts.Tfds(dataset="imdb_reviews", data_dir=str(tmp_path)).read("train"))
        assert "it would download" not in said

    def test_a_different_file_format_is_rejected(self, prepared, tmp_path):
        shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
        info = tmp_path / "tiny_reviews" / "1.0.0" / "dataset_info.json"
        info.write_text(info.read_text().replace("array_record", "tfrecord"))
        said = message(lambda: ja.texts.Tfds(dataset="tiny_reviews", data_dir=str(tmp_path)).read("train"))
        assert 'file_format="array_record"' in said

    def test_missing_field_is_rejected(self, prepared):
        said = message(
            lambda: ja.texts.Tfds(dataset="tiny_reviews", data_dir=prepared, text="review").read("train")
        )
        assert said.startswith("data.text: tiny_reviews has no field 'review'; choose from ")
        assert "label" in said.split("choose from")[1]
        assert "text" in said.split("choose from")[1]
        said = message(lambda: rows(ja.texts.Tfds(dataset="tiny_reviews", data_dir=prepared, text="label")))
        assert said.startswith("data.text: row 0 of split 'train' of tiny_reviews")

    def test_invalid_utf8_is_rejected(self, tmp_path):
        write_tfds(tmp_path, "broken", train=[(b"fine", 0), (b"not \xff fine", 1)])
        said = message(lambda: rows(ja.texts.Tfds(dataset="broken", data_dir=str(tmp_path))))
        assert "row 1 of split 'train' of broken" in said
        assert "UTF-8" in said

    def test_damaged_file_is_rejected(self, prepared, tmp_path):
        shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
        (file,) = (tmp_path / "tiny_reviews" / "1.0.0").glob("*-train.array_record*")
        file.write_bytes(file.read_bytes()[:-40])
        said = message(lambda: rows(ja.texts.Tfds(dataset="tiny_reviews", data_dir=str(tmp_path))))
        assert "tiny_reviews" in said


class TestTables:
    @tables
    def test_one_file_can_contain_all_splits(self, kind, tmp_path):
        columns = ("review", "stars", "part")
        written = [("a", 1, "one"), ("b", 0, "two"), ("c", 0, "one"), ("d", 1, "three")]
        path = WRITERS[kind](tmp_path / "x", written, columns)
        fields = {"path": path, "text": "review", "label": "stars", "split_column": "part"}
        source = kind(**fields, train="one", test="two")
        assert rows(source) == [("a", 1), ("c", 0)]
        assert rows(source, "test") == [("b", 0)]
        said = message(lambda: rows(kind(**fields, train="four")))
        assert said.startswith("data.split_column")
        assert "part = 'four'; choose from one, three, two" in said
        assert kind(**fields, train="one", test="").splits == ("train",)
        joined = kind(**fields, train="one+three", test="two")
        assert rows(joined) == [("a", 1), ("c", 0), ("d", 1)]
        said = message(lambda: rows(kind(**fields, train="one+four")))
        assert "part = 'four'; choose from one, three, two" in said

    @tables
    def test_many_long_split_names_yield_a_short_message(self, kind, tmp_path):
        written = [(f"a\nb {i}" + " long" * 50, 1) for i in range(30)]
        source = kind(path=WRITERS[kind](tmp_path / "x", written), split_column="text")
        assert len(message(lambda: rows(source))) < 1200

    @tables
    def test_single_file_can_lack_a_test_split(self, kind, tmp_path):
        source = kind(path=WRITERS[kind](tmp_path / "x", TRAIN))
        assert source.splits == ("train",)
        assert list(source.files()) == ["path"]

    @tables
    def test_incompatible_settings_are_rejected(self, kind):
        assert "split_column" in message(lambda: kind(path="x", test_path="y", split_column="s").check())
        assert "split_column" in message(lambda: kind(path="x", train="one").check())
        assert "split_column" in message(lambda: kind(path="x", test_path="y", test="dev").check())

    @tables
    def test_missing_file_is_rejected(self, kind, tmp_path):
        path = WRITERS[kind](tmp_path / "x", TRAIN)
        said = message(lambda: kind(path=path, test_path=str(tmp_path / "nowhere")).files())
        assert said == f"data.test_path: no file {tmp_path / 'nowhere'}"
        assert message(kind(path=str(tmp_path)).files).startswith(f"data.path: {tmp_path} is a folder")

    @tables
    @pytest.mark.parametrize("setting", ["text", "label", "split_column"])
    def test_missing_column_is_rejected(self, kind, setting, tmp_path):
        source = kind(**{"path": WRITERS[kind](tmp_path / "x", TRAIN), setting: "other"})
        said = message(lambda: rows(source))
        assert said.startswith(f"data.{setting}: ")
        assert "no field 'other'; choose from text, label" in said
        assert str(tmp_path / "x") in said

    @tables
    @pytest.mark.parametrize("content", [bytes(range(256)), "text,label\nx,1\n".encode("utf-16"), b"\xff"])
    def test_file_with_a_different_format_is_rejected(self, kind, content, tmp_path):
        path = tmp_path / "x"
        path.write_bytes(content)
        assert str(path) in message(lambda: rows(kind(path=str(path))))

    @tables
    def test_empty_file_is_rejected(self, kind, tmp_path):
        path = tmp_path / "x"
        path.write_bytes(b"")
        said = message(lambda: text_module.load_text(kind(path=str(path)), cache_dir=tmp_path))
        assert "no row" in said if kind is ja.texts.Jsonl else str(path) in said

    @tables
    def test_file_without_rows_is_rejected(self, kind, tmp_path):
        path = WRITERS[kind](tmp_path / "x", [])
        assert "no row" in message(lambda: text_module.load_text(kind(path=path), cache_dir=tmp_path))

    @pytest.mark.parametrize("kind", [ja.texts.Csv, ja.texts.Jsonl])
    def test_byte_order_mark_is_ignored_and_invalid_utf8_rejected(self, kind, tmp_path):
        path = WRITERS[kind](tmp_path / "x", TRAIN, encoding="utf-8-sig")
        assert rows(kind(path=path)) == TRAIN
        path = WRITERS[kind](tmp_path / "y", [("été", 1)], encoding="latin-1")
        said = message(lambda: rows(kind(path=path)))
        assert path in said
        assert "UTF-8" in said

    @pytest.mark.parametrize("kind", [ja.texts.Parquet, ja.texts.Jsonl])
    def test_null_text_is_read_as_an_empty_string(self, kind, tmp_path):
        path = WRITERS[kind](tmp_path / "x", [("a", 0), (None, 1)])
        assert rows(kind(path=path)) == [("a", 0), ("", 1)]
        said = message(lambda: text_module.load_text(kind(path=path), cache_dir=tmp_path))
        place = "row 1" if kind is ja.texts.Parquet else "line 2"
        assert f"{place}: this row contains no word of the vocabulary" in said
        assert 'data.empty = "drop"' in said

    @tables
    def test_repeated_field_is_rejected(self, kind, tmp_path):
        path = str(tmp_path / "x")
        for name in ("text", "label"):
            names = ["text", "label", name]
            if kind is ja.texts.Parquet:
                pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 3, names=names), path)
            elif kind is ja.texts.Csv:
                (tmp_path / "x").write_text(",".join(names) + "\na,1,b\n")
            else:
                (tmp_path / "x").write_text("{" + ", ".join(f'"{name}": "a"' for name in names) + "}\n")
            said = message(lambda: rows(kind(path=path)))
            assert said.startswith(f"data.{name}: ")
            assert f"has 2 fields {name!r}; choose from text, label, {name}" in said

    @tables
    def test_several_text_fields_are_joined(self, kind, tmp_path):
        written = [("a title", 1, "its body"), ("b", 0, "")]
        path = WRITERS[kind](tmp_path / "x", written, columns=("title", "label", "body"))
        assert rows(kind(path=path, text=("body", "title"))) == [("its body\na title", 1), ("\nb", 0)]
        assert rows(kind(path=path, text=("title",))) == [("a title", 1), ("b", 0)]
        said = message(lambda: rows(kind(path=path, text=("title", "summary"))))
        assert "has no field 'summary'; choose from title, label, body" in said
        settings = {"path": path, "text": ["title", "body"]}
        assert msgspec.convert(settings, kind).text == ("title", "body")


class TestParquet:
    def test_row_locations_are_correct_beyond_one_chunk(self, tmp_path):
        written = [(f"text {i}", i % 2) for i in range(1100)]
        read = ja.texts.Parquet(path=write_parquet(tmp_path / "x", written)).read("train")
        assert read.total == 1100
        assert list(read.rows) == [(f"row {i}", text, label) for i, (text, label) in enumerate(written)]

    @pytest.mark.parametrize("label", [pa.int8(), pa.float64(), pa.uint64()])
    @pytest.mark.parametrize("text", [pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())])
    def test_column_types_are_converted(self, text, label, tmp_path):
        assert (
            rows(ja.texts.Parquet(path=write_parquet(tmp_path / "x", TRAIN, text=text, label=label))) == TRAIN
        )

    def test_column_without_text_is_rejected(self, tmp_path):
        path = write_parquet(tmp_path / "x", [(7, 0)])
        assert "row 0" in message(lambda: rows(ja.texts.Parquet(path=path)))

    def test_invalid_utf8_is_rejected(self, tmp_path):
        path = write_parquet(tmp_path / "x", [(b"\xff", 0)])
        assert f"row 0 of {path} is not UTF-8" in message(lambda: rows(ja.texts.Parquet(path=path)))

    def test_truncated_file_is_rejected(self, tmp_path):
        path = tmp_path / "x"
        write_parquet(path, TRAIN)
        path.write_bytes(path.read_bytes()[:-20])
        assert f"cannot read {path}" in message(lambda: rows(ja.texts.Parquet(path=str(path))))


class TestCsv:
    def test_delimiter_can_be_set(self, tmp_path):
        path = write_csv(tmp_path / "x", TRAIN, delimiter="\t")
        assert rows(ja.texts.Csv(path=path, delimiter="\t")) == TRAIN

    def test_blank_lines_are_skipped_and_unquoted_fields_are_unchanged(self, tmp_path):
        path = tmp_path / "x"
        path.write_bytes(b"id,text,label\r\n\r\n7,it's 5\" wide,1\r\n8,,0\r\n\r\n")
        assert records(ja.texts.Csv(path=str(path))) == [
            ("line 3", "it's 5\" wide", 1),
            ("line 4", "", 0),
        ]

    def test_the_header_line_is_optional(self, tmp_path):
        """The format of the AG News files: class, title, description."""
        path = tmp_path / "x"
        path.write_text('"3","Wall St.","Short-sellers, again"\n"4","New chip","It is ""fast"""\n')
        columns = ("label", "title", "description")
        source = ja.texts.Csv(path=str(path), columns=columns, text=("title", "description"), labels=(3, 4))
        assert records(source) == [
            ("line 1", "Wall St.\nShort-sellers, again", 3),
            ("line 2", 'New chip\nIt is "fast"', 4),
        ]
        said = message(lambda: rows(ja.texts.Csv(path=str(path))))
        assert said == (
            f"data.text: {path} has no field 'text'; choose from 3, Wall St., Short-sellers, again; if "
            'that is a row, set the field names, such as data.columns = ["label", "text"]'
        )
        said = message(lambda: rows(ja.texts.Csv(path=str(path), columns=("label", "text"))))
        assert said == (
            f"data: line 1 of {path} has 3 fields, but there are 2 field names; list all of them in "
            "data.columns, or fix the quotes"
        )

    def test_lines_with_a_different_format_are_rejected(self, tmp_path):
        path = write_lines(tmp_path / "x", [("good film", 1)])
        assert 'set data.kind = "lines", else data.delimiter' in message(
            lambda: rows(ja.texts.Csv(path=path))
        )

    def test_very_long_text_is_read(self, tmp_path):
        long = [("word " * 100_000, 1)]
        assert rows(ja.texts.Csv(path=write_csv(tmp_path / "x", long))) == long

    @pytest.mark.parametrize(
        ("content", "line"),
        [
            ("text,label\na,1\nb,c,1\n", "line 3"),
            ("text,label\na\n", "line 2"),
            ('text,label\na,1\n"b,1\nc,2\n', "line 4"),
            ('text,label\n"a" b,2\n', "line 2"),
        ],
    )
    def test_malformed_lines_are_rejected(self, content, line, tmp_path):
        path = tmp_path / "x"
        path.write_text(content)
        assert f"{line} of {path}" in message(lambda: rows(ja.texts.Csv(path=str(path))))


class TestJsonl:
    def test_row_locations_count_blank_lines(self, tmp_path):
        path = tmp_path / "x"
        path.write_text('{"text": "a", "label": 0}\n\n  \n{"label": 1, "text": "b"}')
        assert list(ja.texts.Jsonl(path=str(path)).read("train").rows) == [
            ("line 1", "a", 0),
            ("line 4", "b", 1),
        ]

    @pytest.mark.parametrize(
        "line", ['{"text": "a", ', "[1, 2]", '"text"', '{"text": "\\ud800", "label": 1}', "\0"]
    )
    def test_line_that_is_not_an_object_is_rejected(self, line, tmp_path):
        path = tmp_path / "x"
        path.write_text('{"text": "a", "label": 0}\n' + line + "\n")
        assert f"line 2 of {path} is not a JSON object" in message(
            lambda: rows(ja.texts.Jsonl(path=str(path)))
        )

    def test_line_with_a_missing_field_is_rejected(self, tmp_path):
        path = tmp_path / "x"
        path.write_text('{"text": "a", "label": 0}\n{"body": "a", "label": 0}\n')
        said = message(lambda: rows(ja.texts.Jsonl(path=str(path))))
        assert said == f"data.text: line 2 of {path} has no field 'text'; choose from body, label"


class TestLines:
    def test_separator_can_be_set_and_blank_lines_are_skipped(self, tmp_path):
        path = tmp_path / "x"
        path.write_text("__label__2  Stuning even\t so\n\n__label__1 x\u2028y\n")
        source = ja.texts.Lines(path=str(path), labels=("__label__1", "__label__2"))
        assert list(source.read("train").rows) == [
            ("line 1", "Stuning even\t so", "__label__2"),
            ("line 3", "x\u2028y", "__label__1"),
        ]
        path.write_text("0\t a b\n1\tc\td\n")
        assert rows(ja.texts.Lines(path=str(path), separator="\t")) == [(" a b", 0), ("c\td", 1)]

    def test_line_without_label_and_text_is_rejected(self, tmp_path):
        path = tmp_path / "x"
        path.write_text("1\ta\n0 b\n")
        said = message(lambda: rows(ja.texts.Lines(path=str(path), separator="\t")))
        assert said.startswith(f"data: line 2 of {path} has no separator ('0 b'); set data.separator")

    def test_train_and_test_names_require_a_split_column(self, tmp_path):
        with pytest.raises(ja.InputError, match="train, test"):
            ja.texts.Lines(path="x", train="dev").check()


class TestEncoding:
    ROWS = (("été", 1), ("naïf", 0))

    def write(self, kind, folder):
        if kind is ja.texts.Folder:
            named = [(text.encode("latin-1"), ("neg", "pos")[y]) for text, y in self.ROWS]
            return ja.texts.Folder(path=write_folder(folder, train=named), test="")
        write = {ja.texts.Lines: write_lines, **WRITERS}[kind]
        return kind(path=write(folder / "x", self.ROWS, encoding="latin-1"))

    @pytest.mark.parametrize("kind", [ja.texts.Csv, ja.texts.Jsonl, ja.texts.Lines, ja.texts.Folder])
    def test_the_encoding_can_be_set(self, kind, tmp_path):
        source = self.write(kind, tmp_path)
        said = message(lambda: rows(source))
        assert "is not UTF-8 text" in said
        assert 'save it as UTF-8, or set its encoding, such as data.encoding = "cp1252"' in said
        latin = msgspec.structs.replace(source, encoding="latin-1")
        assert sorted(text for text, _ in rows(latin)) == ["na\u00eff", "\u00e9t\u00e9"]
        ascii = msgspec.structs.replace(source, encoding="ascii")
        assert "is not ASCII text" in message(lambda: rows(ascii))

    @pytest.mark.parametrize("kind", [ja.texts.Csv, ja.texts.Jsonl, ja.texts.Lines])
    def test_invalid_lines_are_counted(self, kind, tmp_path):
        """Latin-1 is suggested only if most lines with characters beyond ASCII are in Latin-1."""
        header = 1 if kind is ja.texts.Csv else 0
        utf8, latin, plain = ("été", 1), ("naïf", 0), ("film", 1)
        for good, bad, mixed in ((3, 1, True), (2, 2, False), (0, 2, False)):
            path = tmp_path / f"{good}{bad}"
            write = {ja.texts.Lines: write_lines, **WRITERS}[kind]
            lines = Path(write(path, [plain] * 5 + [utf8] * good)).read_bytes()
            rest = Path(write(path, [latin] * bad, encoding="latin-1")).read_bytes()
            path.write_bytes(lines + rest.partition(b"\n")[2] if header else lines + rest)
            said = message(lambda path=path: rows(kind(path=str(path))))
            assert said.startswith(f"data: line {header + 5 + good + 1} of {path} is not UTF-8 text (")
            assert f"; {bad} of {header + 5 + good + bad} lines are not" in said
            assert ("3 lines with characters beyond ASCII are: it mixes encodings" in said) == mixed
            assert ("cp1252" in said) != mixed

    def test_invalid_utf_16_raises_an_encoding_error(self, tmp_path):
        path = tmp_path / "x"
        path.write_bytes("1 film\n".encode("utf-16-le") + b"\x00\xd8\x00")
        said = message(lambda: rows(ja.texts.Lines(path=str(path), encoding="utf-16-le")))
        assert said.startswith(f"data: {path} is not UTF-16-LE text (")

    @pytest.mark.parametrize("encoding", ["klingon", "base64", "\0", ""])
    def test_unknown_encoding_is_rejected(self, encoding):
        source = ja.texts.Csv(path="x", encoding=encoding)
        if encoding:
            assert "encoding:" in message(source.check)
        else:
            source.check()


class TestFolder:
    def test_files_of_other_types_and_ignored_folders_are_skipped(self, tmp_path):
        path = write_folder(tmp_path, train=[("a", "pos"), ("b", "neg"), (b"\xff", "unsup")])
        (tmp_path / "train" / "labeledBow.feat").write_bytes(b"\xff")
        (tmp_path / "train" / "pos" / "urls.csv").write_bytes(b"\xff")
        source = ja.texts.Folder(path=path, test="")
        assert list(source.read("train").rows) == [
            ("train/neg/1_7.txt", "b", "neg"),
            ("train/pos/0_7.txt", "a", "pos"),
        ]
        assert list(source.files()) == ["train/neg/1_7.txt", "train/pos/0_7.txt"]

    def test_splits_and_classes_can_be_renamed(self, tmp_path):
        path = write_folder(tmp_path, fit=[("a", 1), ("b", 2), ("c", 5)])
        source = ja.texts.Folder(path=path, train="fit", test=None, labels=(5, 1), ignore_labels=(2,))
        assert rows(source) == [("c", 5), ("a", 1)]

    def test_missing_split_is_rejected(self, tmp_path):
        source = ja.texts.Folder(path=write_folder(tmp_path, train=[("a", "pos"), ("b", "neg")]))
        said = message(source.files)
        assert said.startswith(f"data.path: no folder {tmp_path / 'test'}")
        assert "data.test" in said

    def test_missing_or_unknown_class_is_rejected(self, tmp_path):
        source = ja.texts.Folder(path=write_folder(tmp_path, train=[("a", "pos")]), test="")
        assert f"no files {tmp_path / 'train' / 'neg'}/*.txt" in message(source.files)
        write_folder(tmp_path, train=[("a", "neg"), ("a", "mixed")])
        said = message(source.files)
        assert "'mixed', expected only neg, pos" in said
        assert "data.ignore_labels" in said

    def test_class_without_texts_is_rejected(self, tmp_path):
        source = ja.texts.Folder(path=write_folder(tmp_path, train=[("a", "pos")]), test="")
        (tmp_path / "train" / "neg").mkdir()
        assert f"no files {tmp_path / 'train' / 'neg'}/*.txt" in message(source.files)

    @pytest.mark.parametrize("content", [b"\xff\xfe", b"\x89PNG\r\n\x1a\n\0", "text".encode("utf-16-le")])
    def test_file_that_is_not_text_is_rejected(self, content, tmp_path):
        source = ja.texts.Folder(path=write_folder(tmp_path, train=[("a", "pos"), (content, "neg")]), test="")
        said = message(lambda: rows(source))
        assert str(tmp_path / "train" / "neg" / "1_7.txt") in said
        assert "UTF-8" in said

    def test_empty_file_is_rejected(self, tmp_path):
        source = ja.texts.Folder(path=write_folder(tmp_path, train=[("a", "pos"), ("", "neg")]), test="")
        said = message(lambda: text_module.load_text(source, cache_dir=tmp_path / "cache"))
        assert "train/neg/1_7.txt: this row contains no word of the vocabulary" in said
