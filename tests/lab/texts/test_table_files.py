import gzip
import json
import lzma

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jaxattn as ja
from jaxattn.lab.texts import text


def rows(source, split="train"):
    return [(text, label) for _, text, label in source.read(split).rows]


def message(action):
    with pytest.raises(ja.InputError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


class TestQuotes:
    # The quotes of the second and fourth rows are ordinary characters.
    LETTERS = 'label;text\n1;fine\n0;"Dull, he said\n1;lovely\n0;said he"\n'

    def test_quotes_are_ordinary_characters_if_every_line_is_a_row(self, tmp_path):
        path = put(tmp_path / "x", self.LETTERS)
        read = rows(ja.texts.Csv(path=path, delimiter=";"))
        assert read == [("fine", "1"), ('"Dull, he said', "0"), ("lovely", "1"), ('said he"', "0")]
        assert rows(ja.texts.Csv(path=path, delimiter=";", quoting="none")) == read
        fields = rows(ja.texts.Csv(path=path, delimiter=";", quoting="fields"))
        assert fields == [("fine", "1"), ("Dull, he said\n1;lovely\n0;said he", "0")]

    @pytest.mark.parametrize("spoilt", ["2;of a class that is not listed\n", "1;one;more\n"])
    def test_quotes_that_enclose_whole_rows_are_rejected(self, tmp_path, spoilt):
        path = put(tmp_path / "x", self.LETTERS.replace("1;lovely\n", f"1;lovely\n{spoilt}"))
        said = message(lambda: rows(ja.texts.Csv(path=path, delimiter=";")))
        assert said.startswith(
            f"data: lines 3 to 6 of {path} are read as one row because of quotes, but look like several rows"
        )
        assert 'data.quoting = "none"' in said
        assert len(rows(ja.texts.Csv(path=path, delimiter=";", quoting="fields"))) == 2

    def test_quoted_text_may_span_lines(self, tmp_path):
        path = put(tmp_path / "x", 'text,label\n"good, 1\nbad, 0\n,",1\nplain,0\n')
        assert rows(ja.texts.Csv(path=path)) == [("good, 1\nbad, 0\n,", "1"), ("plain", "0")]

    def test_unbalanced_quote_is_rejected(self, tmp_path):
        path = put(tmp_path / "x", 'text,label\n"a,1\nb,7\n')
        assert 'fix the quotes, or set data.quoting = "none"' in message(
            lambda: rows(ja.texts.Csv(path=path))
        )
        path = put(tmp_path / "y", 'text,label\n"a,1\nb,0\n')
        assert rows(ja.texts.Csv(path=path)) == [('"a', "1"), ("b", "0")]


class TestShards:
    def write(self, folder, kind):
        for number, (first, second) in enumerate((("a", "b"), ("c", "d"), ("e", "f"))):
            columns = {"text": [first, second], "label": [0, 1]}
            path = folder / f"train-{number:05d}-of-00003"
            if kind is ja.texts.Parquet:
                pq.write_table(pa.table(columns), path)
            elif kind is ja.texts.Lines:
                put(path, f"0 {first}\n1 {second}\n")
            else:
                lines = [json.dumps({"text": t, "label": y}) for t, y in zip(*columns.values(), strict=True)]
                put(path, "\n".join(lines))

    @pytest.mark.parametrize("kind", [ja.texts.Parquet, ja.texts.Jsonl, ja.texts.Lines])
    def test_pattern_can_match_several_files(self, tmp_path, kind):
        self.write(tmp_path, kind)
        source = kind(path=str(tmp_path / "train-0000[02]*"), test_path=str(tmp_path / "train-00001*"))
        read = source.read("train")
        assert read.total == (4 if kind is ja.texts.Parquet else None)
        found = list(read.rows)
        assert "".join(text for _, text, _ in found) == "abef"
        first = {ja.texts.Parquet: "row 0", ja.texts.Jsonl: "line 1", ja.texts.Lines: "line 1"}[kind]
        assert found[2][0] == f"{first} of train-00002-of-00003"
        assert [text for text, _ in rows(source, "test")] == ["c", "d"]
        assert list(source.files()) == ["path", "path 1", "test_path"]
        assert text.load_text(kind(path=source.path), cache_dir=tmp_path / "cache").train.num_examples == 4

    def test_column_can_determine_the_split_within_each_shard(self, tmp_path):
        for name in ("one", "two"):
            pq.write_table(
                pa.table({"text": ["a", "b"], "label": [0, 1], "part": [name] * 2}), tmp_path / f"{name}.pq"
            )
        settings = {"path": str(tmp_path / "*.pq"), "split_column": "part"}
        assert len(rows(ja.texts.Parquet(**settings, train="one+two"))) == 4
        assert "part = 'three'" in message(lambda: rows(ja.texts.Parquet(**settings, train="one+three")))

    def test_brackets_in_file_names_are_literal(self, tmp_path):
        self.write(tmp_path, ja.texts.Lines)
        path = put(tmp_path / "set[1]", "1 good\n")
        assert rows(ja.texts.Lines(path=path)) == [("good", "1")]

    def test_file_of_another_split_in_the_training_pattern_is_rejected(self, tmp_path):
        for name in ("train-0", "train-1", "dev-0", "holdout"):
            put(tmp_path / "d" / f"{name}.jsonl", '{"text": "a", "label": 1}\n')
        folder = tmp_path / "d"
        held = f"{folder}/holdout.jsonl"
        for path, test_path in ((f"{folder}/*", held), (held, held), (f"{folder}/../d/hold*", held)):
            said = message(ja.texts.Jsonl(path=path, test_path=test_path).files)
            assert said.startswith("data.path, data.test_path: ")
            assert said.endswith(
                'is in both splits; use patterns that keep them apart, such as "train-*" and "test-*"'
            )
        said = message(ja.texts.Jsonl(path=f"{folder}/*").files)
        assert "matches files of several splits" in said
        assert said.endswith(f'use a pattern for the training files, such as "{folder}/train-*"')
        assert len(ja.texts.Jsonl(path=f"{folder}/train-*", test_path=held).files()) == 3
        assert len(ja.texts.Jsonl(path=f"{folder}/*", split_column="label").files()) == 4

    def test_advice_for_a_folder_selects_one_split(self, tmp_path):
        for name in ("train/0.pq", "test/0.pq", "flat/validation_1.pq", "flat/Test_1.pq", "flat/training.pq"):
            put(tmp_path / name, b"")
        for settings, advice in (
            ({"path": tmp_path}, f"{tmp_path}/train/*"),
            ({"path": tmp_path / "flat"}, f"{tmp_path}/flat/training.*"),
            (
                {"path": tmp_path / "flat/training.pq", "test_path": tmp_path / "flat"},
                f"{tmp_path}/flat/Test_*",
            ),
        ):
            source = ja.texts.Parquet(**{key: str(path) for key, path in settings.items()})
            assert message(source.files).endswith(f'use a pattern for its files: "{advice}"')

    def test_missing_shard_is_rejected(self, tmp_path):
        assert message(ja.texts.Parquet(path=str(tmp_path / "*.pq")).files).endswith(
            f"no file {tmp_path}/*.pq"
        )
        said = message(ja.texts.Parquet(path=str(tmp_path)).files)
        assert said.endswith(f'is a folder; use a pattern for its files: "{tmp_path}/*"')


class TestBytes:
    @pytest.mark.parametrize(
        ("compress", "name"),
        [(gzip.compress, "gzip"), (lzma.compress, "xz"), (lambda x: b"\x28\xb5\x2f\xfd" + x, "zstd")],
    )
    @pytest.mark.parametrize("kind", [ja.texts.Csv, ja.texts.Jsonl, ja.texts.Lines, ja.texts.Parquet])
    def test_compressed_file_is_rejected(self, tmp_path, kind, compress, name):
        path = put(tmp_path / "x", compress(b"text,label\ngood,1\nbad,0\n"))
        for encoding in (None, "latin-1"):
            settings = {} if kind is ja.texts.Parquet else {"encoding": encoding}
            said = message(lambda settings=settings: rows(kind(path=path, **settings)))
            assert said == f"data: {path} is compressed with {name}; decompress it first"

    def test_utf_16_text_is_detected(self, tmp_path):
        path = put(tmp_path / "x", "1 good\n".encode("utf-16"))
        said = message(lambda: rows(ja.texts.Lines(path=path)))
        assert said == f'data: {path} is UTF-16 text; set data.encoding = "utf-16", or save it as UTF-8'
        assert rows(ja.texts.Lines(path=path, encoding="utf-16")) == [("good", "1")]

    @pytest.mark.parametrize("encoding", ["latin-1", "ISO-8859-1", "cp1252"])
    def test_windows_curly_quotes_are_decoded(self, tmp_path, encoding):
        path = put(tmp_path / "x", "1 “isn’t” – été\n".encode("cp1252"))
        assert rows(ja.texts.Lines(path=path, encoding=encoding)) == [("“isn’t” – été", "1")]
        assert 'such as data.encoding = "cp1252"' in message(lambda: rows(ja.texts.Lines(path=path)))

    @pytest.mark.parametrize("encoding", ["latin-1", "ISO-8859-1", "l1"])
    def test_latin_1_decodes_every_byte(self, tmp_path, encoding):
        every = bytes(x for x in range(256) if x not in b"\n\r")
        characters = [every[k : k + 1].decode("cp1252", "replace") for k in range(33, len(every))]
        characters = [chr(every[33 + k]) if x == "\ufffd" else x for k, x in enumerate(characters)]
        path = put(tmp_path / "x", b"1\tfirst " + every[33:] + b" last\n")
        ((text, label),) = rows(ja.texts.Lines(path=path, encoding=encoding, separator="\t"))
        assert (text, label) == ("first " + "".join(characters) + " last", "1")

    @pytest.mark.parametrize(
        "encoding", [None, "utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]
    )
    @pytest.mark.parametrize("kind", [ja.texts.Csv, ja.texts.Jsonl, ja.texts.Lines])
    def test_byte_order_mark_is_not_text(self, tmp_path, kind, encoding):
        content = {
            ja.texts.Csv: "label,text\n1,fine\n",
            ja.texts.Jsonl: '{"label": "1", "text": "fine"}\n',
            ja.texts.Lines: "1 fine\n",
        }[kind]
        written = content if encoding == "utf-16" else f"\ufeff{content}"
        path = put(tmp_path / "x", written.encode(encoding or "utf-8"))
        assert rows(kind(path=path, encoding=encoding)) == [("fine", "1")]
