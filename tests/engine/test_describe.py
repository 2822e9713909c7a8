import json

import pytest

from jaxattn import Study
from jaxattn.data.text import silent
from jaxattn.engine import describe


@pytest.fixture
def texts(tmp_path, tables):
    """Make a study of forty short texts."""
    rows = [{"text": f"{'good' if i % 2 else 'bad'} film {i % 5}", "label": i % 2} for i in range(40)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(**settings):
        return Study.of_tables(tables(data={"kind": "jsonl", "path": str(path)} | settings, figures=[]))

    return make


def test_a_validation_split_of_texts_is_loaded_and_described(texts, study):
    wanted = texts(validation=0.25)
    loaded = wanted.base.data.load(silent)
    assert loaded.splits.validation.num_sequences == 10
    assert loaded.splits.train.num_sequences == 30
    assert loaded.splits.test is None
    ((_, sizes), *_) = describe.corpus(wanted, 1, silent)
    assert sizes["split"].tolist() == ["train", "validation"]
    assert texts().base.data.load(silent).splits.validation is None
    assert wanted.base.data.shared
    assert not study().base.data.shared


def test_a_corpus_of_own_code_is_described(study):
    tables = describe.corpus(study("own"), 3, silent)
    (_, sizes), *_ = tables
    assert sizes["split"].tolist() == ["train", "test"]
    assert sizes["sequences"].tolist() == ["12", "8"]
    ((_, shared), *_) = describe.corpus(study("own", data="mine.py:fixed"), 3, silent)
    assert shared["split"].tolist() == ["train"]
