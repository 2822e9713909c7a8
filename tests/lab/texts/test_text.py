import json
import random
import re
import string
import unicodedata
from collections import Counter

import jax
import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer

import jaxattn as ja
from jaxattn.lab.texts import text as module
from jaxattn.lab.texts.text import tokenise

ROWS = [
    ("A good film, a GOOD film<br /><br />indeed", 1),
    ("bad film. Don't!", 0),
    ("don't watch", 0),
    ("good", 1),
]
TEST = [("unseen good words", 1), ("bad bad unseen", 0)]


def write(path, rows):
    path.write_text("".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in rows))
    return str(path)


@pytest.fixture
def source(tmp_path):
    return ja.texts.Jsonl(path=write(tmp_path / "a.jsonl", ROWS), test_path=write(tmp_path / "b.jsonl", TEST))


@pytest.fixture
def settings(tmp_path):
    return {"cache_dir": tmp_path / "cache"}


def changed(source, **fields):
    return type(source)(**{name: getattr(source, name) for name in source.__struct_fields__} | fields)


def message(source, **settings):
    with pytest.raises(ja.InputError) as caught:
        ja.texts.load_text(source, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def counts(corpus):
    """Return the dense (n, V) matrix of token counts."""
    bags = corpus.bags
    index, count = np.asarray(bags.index), np.asarray(bags.count)
    owner = np.broadcast_to(np.asarray(bags.owner)[:, None], index.shape)
    dense, held = np.zeros((corpus.num_examples, corpus.vocab_size)), count > 0
    np.add.at(dense, (owner[held], index[held]), count[held])
    return dense


def same(left, right):
    trees = [(loaded.train, loaded.test, loaded.validation) for loaded in (left, right)]
    return (
        left.vocabulary == right.vocabulary
        and jax.tree.structure(trees[0]) == jax.tree.structure(trees[1])
        and all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, trees), strict=True))
    )


def random_texts(seed, number):
    """Sample texts of Zipf-distributed words with separators that are hard to tokenise."""
    rng = np.random.default_rng(seed)
    words = [f"{a}{b}" for a in ("Bad", "good", "x2", "don't", "É", "rock'n'roll", "1984") for b in "abcde"]
    gaps = [" ", ", ", "<br />", " 'quoted' ", "--", "_", "\n", "...", " ' ", "’ ", "<br/><br />"]
    return [
        "".join(
            words[min(rng.zipf(1.5) - 1, 34)] + gaps[rng.integers(11)] for _ in range(rng.integers(1, 30))
        )
        for _ in range(number)
    ]


def oracle(**settings):
    return CountVectorizer(
        preprocessor=lambda text: text.replace("<br />", " ").replace("<br/>", " ").lower(),
        token_pattern=r"(?u)[^\W_]+(?:'[^\W_]+)*",
        **settings,
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't STOP, it's great!!", ["don't", "stop", "it's", "great"]),
        ("don’t stop", ["don't", "stop"]),
        ("end.<br /><br />Start<BR>on<br/>", ["end", "start", "on"]),
        ("'quoted' dogs' 'til rock'n'roll", ["quoted", "dogs", "til", "rock'n'roll"]),
        ("10/10 in the 90's, 2001", ["10", "10", "in", "the", "90's", "2001"]),
        ("Clichéd ÉTÉ", ["clichéd", "été"]),
        ("snake_case well-made e-mail", ["snake", "case", "well", "made", "e", "mail"]),
        ("... !? <br /> '", []),
        ("", []),
    ],
)
def test_tokenise_splits_words(text, words):
    assert tokenise(text) == words


@pytest.mark.parametrize(
    "text",
    [
        "हिन्दी में अच्छी कहानी",
        "বাংলা ভাষা সুন্দর",
        "தமிழ் மொழி",
        "తెలుగు భాష",
        "كِتَابٌ جَمِيلٌ",
        "שָׁלוֹם עֲלֵיכֶם",
        "می\u200cروم خانه",
        "ọ̀rẹ́ mi",
    ],
)
def test_combining_marks_stay_attached_to_their_letters(text):
    assert tokenise(f"({text})!") == text.split()


def test_lone_combining_marks_and_invisible_characters_are_removed():
    assert tokenise("\u0301 \u0301a _\u0308b_ ''\u0301c don\u2019t\u0301 x") == [
        "a",
        "b",
        "c",
        "don't\u0301",
        "x",
    ]
    assert tokenise("co\u00adop \u200fשלום\u200f naïve") == ["coop", "שלום", "naïve"]
    assert tokenise("é\u200bà") == ["é", "à"]


@pytest.mark.parametrize("text", ["Été à Ǹice, ẹ̀kọ́ Việt", "फ़िल्म ज़्यादा", "한국어 단어", "Ǆ ǰ İstanbul Å Ω"])
def test_canonically_equal_texts_have_equal_words(text):
    forms = [tokenise(unicodedata.normalize(form, text)) for form in ("NFC", "NFD")]
    assert forms[0] == forms[1] == tokenise(text)
    assert len(forms[0]) == len(text.replace(",", "").split())
    assert tokenise(unicodedata.normalize("NFD", text.upper())) == tokenise(text.upper())


def test_ascii_words_match_regular_expression():
    rng = random.Random(0)
    for _ in range(300):
        text = "".join(rng.choices(string.printable + "'\\ " * 9, k=200))
        plain = re.sub(r"<br\s*/?>", " ", text.lower())
        assert tokenise(text) == re.findall(r"[^\W_]+(?:'[^\W_]+)*", plain)


@pytest.mark.parametrize("min_count", [1, 3, 10])
def test_vocabulary_matches_scikit_learn(min_count):
    texts = random_texts(0, 60)
    vocabulary = ja.texts.build_vocabulary(texts, min_count=min_count)
    vectors = oracle()
    totals = np.asarray(vectors.fit_transform(texts).sum(axis=0)).ravel()
    expected = {
        str(word): int(total)
        for word, total in zip(vectors.get_feature_names_out(), totals, strict=True)
        if total >= min_count
    }
    assert dict(zip(vocabulary.tokens, vocabulary.counts, strict=True)) == expected
    assert list(vocabulary.tokens) == sorted(expected, key=lambda word: (-expected[word], word))
    assert len(vocabulary) == len(expected) > 5


def test_max_vocab_keeps_most_frequent_words():
    texts = ["b a d c", "d c", "d"]
    assert ja.texts.build_vocabulary(texts, max_vocab=3) == ja.texts.Vocabulary(("d", "c", "a"), (3, 2, 1))
    assert ja.texts.build_vocabulary(texts, max_vocab=9).tokens == ("d", "c", "a", "b")


def test_token_ids_match_scikit_learn():
    texts, others = random_texts(1, 50), random_texts(2, 40)
    vocabulary = ja.texts.build_vocabulary(texts, min_count=5)
    ids, lengths = ja.texts.encode(others, vocabulary)
    rows = np.repeat(np.arange(40), lengths)
    counted = np.zeros((40, len(vocabulary)), int)
    np.add.at(counted, (rows, ids), 1)
    expected = oracle(vocabulary=vocabulary.index).transform(others).toarray()
    np.testing.assert_array_equal(counted, expected)


@pytest.mark.parametrize("max_length", [None, 1, 4, 100])
def test_max_length_keeps_first_known_words(max_length):
    vocabulary = ja.texts.Vocabulary(("a", "b", "c"), (3, 2, 1))
    texts = ["x", "c x x b a x a a b", "", "b b", "x a x"]
    ids, lengths = ja.texts.encode(texts, vocabulary, max_length=max_length)
    expected = [["abc".index(w) for w in t.split() if w in "abc"][:max_length] for t in texts]
    assert lengths.tolist() == [len(row) for row in expected]
    assert ids.tolist() == [i for row in expected for i in row]


def test_encoding_an_empty_list_yields_empty_arrays():
    ids, lengths = ja.texts.encode([], ja.texts.Vocabulary(("a",), (1,)))
    assert ids.shape == lengths.shape == (0,)


def test_load_text_returns_corpora_and_vocabulary(source, settings):
    train, test, vocabulary, validation = ja.texts.load_text(source, **settings)
    assert validation is None
    expected = Counter(w for t, _ in ROWS for w in tokenise(t))
    assert dict(zip(vocabulary.tokens, vocabulary.counts, strict=True)) == expected
    assert vocabulary.tokens[:3] == ("film", "good", "a")
    assert train.targets.tolist() == [1, -1, -1, 1]
    assert test.targets.tolist() == [1, -1]
    for corpus, rows in ((train, ROWS), (test, TEST)):
        dense = [[tokenise(t).count(word) for word in vocabulary.tokens] for t, _ in rows]
        np.testing.assert_array_equal(counts(corpus), dense)
        np.testing.assert_array_equal(corpus.lengths, np.sum(dense, axis=1))
        assert corpus.num_classes == 2


def test_load_text_matches_scikit_learn(tmp_path, settings):
    texts = random_texts(3, 300)
    path = write(tmp_path / "c.jsonl", [(t, i % 2) for i, t in enumerate(texts)])
    train, test, vocabulary, _ = ja.texts.load_text(ja.texts.Jsonl(path=path, min_count=2), **settings)
    assert test is None
    expected = oracle(vocabulary=vocabulary.index).transform(texts).toarray()
    np.testing.assert_array_equal(counts(train), expected)


@pytest.mark.parametrize("vocab", [255, 256, 257])
def test_corpora_match_token_ids(tmp_path, settings, vocab):
    """Sizes include one at which token ids just fit into a byte."""
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(vocab)]
    texts = [" ".join(words)] + [" ".join(rng.choice(words[:20], rng.integers(1, 90))) for _ in range(299)]
    labels = rng.choice([-1, 1], 300)
    rows = [(text, int(label)) for text, label in zip(texts, labels, strict=True)]
    source = ja.texts.Jsonl(path=write(tmp_path / "a.jsonl", rows), labels=(-1, 1), max_length=300)
    train, _, vocabulary, _ = ja.texts.load_text(source, **settings)
    expected = ja.data.from_flat(*ja.texts.encode(texts, vocabulary), labels, vocab_size=vocab)
    expected = expected.replace(class_names=("-1", "1"))
    assert same(
        ja.texts.TextCorpora(train, None, vocabulary), ja.texts.TextCorpora(expected, None, vocabulary)
    )
    assert [x.dtype for x in jax.tree.leaves(train)] == [x.dtype for x in jax.tree.leaves(expected)]


def test_labels_are_numbered_in_the_order_in_which_they_are_listed(tmp_path, settings):
    rows = [("one", 1), ("three only", 3), ("five", 5), ("two one", 2), ("four", 4.0)]
    source = ja.texts.Jsonl(path=write(tmp_path / "s.jsonl", rows), labels=(5, 4, 2, 1), ignore_labels=(3,))
    train, _, vocabulary, _ = ja.texts.load_text(source, **settings)
    assert train.targets.tolist() == [3, 0, 2, 1]
    assert train.num_classes == 4
    assert set(vocabulary.tokens) == {"one", "two", "four", "five"}


def test_two_classes_are_encoded_as_minus_one_and_one_in_listed_order(tmp_path, settings):
    rows = [("a", "good"), ("a", "bad"), ("a", "good")]
    source = ja.texts.Jsonl(path=write(tmp_path / "s.jsonl", rows), labels=("good", "bad"))
    assert ja.texts.load_text(source, **settings).train.targets.tolist() == [-1, 1, -1]


def test_min_count_max_vocab_and_max_length_are_applied(source, settings):
    source = changed(source, min_count=2, max_vocab=4, max_length=1, test_path=None)
    train, _, vocabulary, _ = ja.texts.load_text(source, **settings)
    assert vocabulary == ja.texts.Vocabulary(("film", "good", "a", "don't"), (3, 3, 2, 2))
    assert train.lengths.tolist() == [1, 1, 1, 1]
    assert [vocabulary.tokens[row.argmax()] for row in counts(train)] == ["a", "film", "don't", "good"]


def test_text_without_vocabulary_words_is_rejected(tmp_path, settings):
    source = ja.texts.Jsonl(
        path=write(tmp_path / "a.jsonl", [("", 1), ("good", 1), ("good", 0), ("rare", 0)]),
        test_path=write(tmp_path / "b.jsonl", [("good", 1), ("unseen", 0)]),
    )
    said = message(source, **settings)
    assert "train split, line 1" in said
    assert 'data.empty = "drop"' in said
    write(tmp_path / "a.jsonl", ROWS)
    assert "test split, line 2" in message(source, **settings)
    train, test, *_ = ja.texts.load_text(changed(source, empty="drop"), **settings)
    assert train.num_examples == 4
    assert test.targets.tolist() == [1]
    write(tmp_path / "b.jsonl", [("unseen", 0)])
    assert "no row in the test split contains a word of the vocabulary" in message(
        changed(source, empty="drop"), **settings
    )


def test_dropping_rows_keeps_labels_aligned(tmp_path, settings):
    rows = [("rare", 0), ("good", 1), ("odd", 1), ("good good", 0), ("", 0)]
    source = ja.texts.Jsonl(path=write(tmp_path / "a.jsonl", rows), min_count=2, empty="drop")
    train = ja.texts.load_text(source, **settings).train
    assert train.targets.tolist() == [1, -1]
    assert train.lengths.tolist() == [1, 2]


def test_unreachable_min_count_is_rejected(source, settings):
    said = message(changed(source, min_count=4), **settings)
    assert "data.min_count" in said
    assert "set it to at most 3" in said


@pytest.mark.parametrize("label", [2, -1, "one", "01", 0.5, [1], {"a": 1}])
def test_unknown_label_is_rejected(tmp_path, settings, label):
    source = ja.texts.Jsonl(path=write(tmp_path / "a.jsonl", [*ROWS, ("good", label)]))
    said = message(source, **settings)
    assert f"train split, line 5: label {label!r} is not one of [0, 1]" in said
    assert "data.ignore_labels" in said


@pytest.mark.parametrize("label", [None, ""])
def test_row_without_a_label_is_rejected(tmp_path, settings, label):
    source = ja.texts.Jsonl(path=write(tmp_path / "a.jsonl", [("lone", label), *ROWS]))
    said = message(source, **settings)
    assert said.endswith('is not one of [0, 1]; set data.empty = "drop" to drop such rows')
    told = []
    source = changed(source, empty="drop")
    loaded = ja.texts.load_text(source, progress=lambda *report: told.append(report), **settings)
    assert loaded.train.targets.tolist() == [1, -1, -1, 1]
    assert "lone" not in loaded.vocabulary.index
    assert ("data.empty: 1 rows of the train split have no label and are dropped", 0, 0) in told


def test_raw_labels_can_be_merged(tmp_path, settings):
    rows = [("awful", "1"), ("poor", 2.0), ("so so", 3), ("fine", 4), ("great", "5.0")]
    source = ja.texts.Jsonl(
        path=write(tmp_path / "a.jsonl", rows), labels=((1, 2), (4, 5)), ignore_labels=(3,), balance=True
    )
    train = ja.texts.load_text(source, **settings).train
    assert train.targets.tolist() == [-1, -1, 1, 1]
    assert train.class_names == ("1+2", "4+5")
    said = message(changed(source, labels=((1, 2), 4)), **settings)
    assert "label '5.0' is not one of [(1, 2), 4]" in said


@pytest.mark.parametrize("kind", [ja.texts.Jsonl, ja.texts.Csv])
def test_escaped_line_breaks_do_not_become_letters(tmp_path, settings, kind):
    texts = [r"Nice room.\n\nNever noisy", r"see C:\Users\new folder", r"nothing\t\n\nnow"]
    if kind is ja.texts.Jsonl:
        path = write(tmp_path / "a", [(text, i % 2) for i, text in enumerate(texts)])
    else:
        path = str(tmp_path / "a")
        (tmp_path / "a").write_text("text,label\n" + "".join(f'"{t}",{i % 2}\n' for i, t in enumerate(texts)))
    told = []
    found = ja.texts.load_text(
        kind(path=path), progress=lambda *report: told.append(report), **settings
    ).vocabulary.tokens
    assert set(found) == {*tokenise("nice room never noisy see c users new folder nothing t now")}
    said = [what for what, _, total in told if total == 0]
    assert said == [
        'data.escapes: in 2 texts of the train split \\n is read as a line break; set data.escapes = "kept" '
        "to keep it as two characters"
    ]
    kept = ja.texts.load_text(kind(path=path, escapes="kept"), **settings).vocabulary.tokens
    assert {"nnever", "nnow"} <= set(kept)


def words_of(path, texts, settings, notes=None, **fields):
    rows = [(text, i % 2) for i, text in enumerate(texts)]

    def note(text, done, total):
        if notes is not None and total == 0:
            notes.append(text)

    return set(
        ja.texts.load_text(
            ja.texts.Jsonl(path=write(path, rows), **fields), progress=note, **settings
        ).vocabulary.tokens
    )


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        # One backslash before a word that begins with n, as in LaTeX and in files with bare backslashes.
        ([r"the gap\narrows", r"a norm $\nabla f$", "some text"], "the gap narrows a norm nabla f some text"),
        ([r"red\nose", "a nose"], "red nose a"),
        # Lower-case words after a line break, which occur elsewhere without the n.
        ([r"fine\nbut slow", "slow but fine", "nothing else"], "fine but slow nothing else"),
        # Full stops and capital letters show line breaks.
        ([r"dull.\nso long", "fine"], "dull so long fine"),
        ([r"dull\nToo long", "fine"], "dull too long fine"),
        ([r"dull\n\nlong", r"a\n 1"], "dull long a 1"),
    ],
)
def test_backslash_n_is_a_line_break_if_the_texts_show_it(tmp_path, settings, texts, words):
    assert words_of(tmp_path / "a", texts, settings) == set(words.split())


@pytest.mark.parametrize(
    ("texts", "phrases"),
    [
        (["这部电影的故事非常好看", "我会再看一遍，而且推荐给朋友们"], True),
        (["この映画はとても面白かったです", "もう一度見たいと思います"], True),
        (["ภาพยนตร์เรื่องนี้สนุกมาก", "ฉันจะดูอีกครั้งแน่นอน"], True),
        (["这 部 电影 的 故事 非常 好看", "我 会 再 看 一遍"], False),
        (["この 映画 は とても 面白かった", "もう 一度 見たい"], False),
        (["ภาพยนตร์ เรื่อง นี้ สนุก มาก", "ฉัน จะ ดู อีก ครั้ง"], False),
        (["한국어 단어 그리고 문장", "фильм очень хороший"], False),
        (
            ["the title 这部电影的故事非常好看 is cited in an English text of more than ten words", "dull"],
            False,
        ),
    ],
)
def test_texts_without_spaces_between_words_are_reported(tmp_path, settings, texts, phrases):
    notes = []
    words_of(tmp_path / "a", texts, settings, notes)
    assert [("segment the texts into words" in note) for note in notes] == [True] * phrases
    assert not any("\n" in note for note in notes)


@pytest.mark.parametrize("name", ["nan", "NA", "null", "None"])
@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_class_may_have_the_name_of_a_missing_value(tmp_path, settings, name, delimiter):
    (tmp_path / "a").write_text(f"label{delimiter}text\n{name}{delimiter}dull\nok{delimiter}fine\n")
    source = ja.texts.Csv(path=str(tmp_path / "a"), delimiter=delimiter, labels=("ok", name))
    assert ja.texts.load_text(source, **settings).train.targets.tolist() == [1, -1]
    source = ja.texts.Csv(path=str(tmp_path / "a"), delimiter=delimiter, labels=("ok", "x"), empty="drop")
    assert f"label '{name}' is not one of" in message(source, **settings)


def test_numpy_scalars_and_arrays_are_accepted_as_settings(tmp_path, settings):
    path = write(tmp_path / "a", [("good film", 7), ("bad film", 3), ("fine", 5)])
    expected = ja.texts.load_text(
        ja.texts.Jsonl(path=path, labels=(3, 7), ignore_labels=(5,), min_count=1), **settings
    )
    for labels in (np.array([3, 7]), list(np.array([3, 7])), (np.float32(3), np.str_("7"))):
        source = ja.texts.Jsonl(path=path, labels=labels, ignore_labels=(np.int8(5),), min_count=np.int64(1))
        found = ja.texts.load_text(source, **settings)
        assert found.vocabulary == expected.vocabulary
        assert found.train.targets.tolist() == expected.train.targets.tolist() == [1, -1]


def test_texts_in_the_label_field_yield_a_short_message(tmp_path, settings):
    source = ja.texts.Jsonl(path=write(tmp_path / "a.jsonl", [("good", "film\n" * 500)]))
    assert len(message(source, **settings)) < 300


def test_ignoring_all_rows_is_rejected(tmp_path, settings):
    source = ja.texts.Jsonl(path=write(tmp_path / "a.jsonl", [("a", 3)]), ignore_labels=(3,))
    assert "no row in the train split" in message(source, **settings)
    (tmp_path / "empty.jsonl").write_text("")
    assert "no row in the train split" in message(
        ja.texts.Jsonl(path=str(tmp_path / "empty.jsonl")), **settings
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"min_count": 0},
        {"max_vocab": 0},
        {"max_length": -1},
        {"labels": (1,)},
        {"empty": "skip"},
        {"validation": 1.0},
        {"validation": -0.1},
    ],
)
def test_invalid_settings_are_rejected(source, settings, fields):
    with pytest.raises(ja.InputError, match=rf"\.{next(iter(fields))}: "):
        changed(source, **fields)


STARS = [
    (f"w{i} star{stars}", stars)
    for i, stars in enumerate([5] * 30 + [3] * 9 + [1] * 10 + [2] * 12 + [4] * 20)
]


@pytest.fixture
def stars(tmp_path):
    path = write(tmp_path / "stars.jsonl", STARS)
    few = write(tmp_path / "few.jsonl", STARS[:32] + STARS[45:70])
    return ja.texts.Jsonl(
        path=path, test_path=few, labels=(1, 2, 4, 5), ignore_labels=(3,), empty="drop", balance=True
    )


def held(corpus, vocabulary):
    """Return the numbered words of a corpus, which identify its rows."""
    return {vocabulary.tokens[token] for token in counts(corpus).nonzero()[1].tolist()} - {
        f"star{k}" for k in range(6)
    }


def test_balanced_splits_are_deterministic(stars, settings):
    train, test, vocabulary, _ = ja.texts.load_text(stars, **settings)
    assert np.bincount(train.targets).tolist() == [10, 10, 10, 10]
    assert np.bincount(test.targets).tolist() == [4, 4, 4, 4]
    rows = held(train, vocabulary)
    assert len(rows) == 40
    by_class = [{f"w{i}" for i, (_, y) in enumerate(STARS) if y == label} for label in stars.labels]
    assert [len(rows & own) for own in by_class] == [10, 10, 10, 10]
    # The rows are sampled, not the first ones.
    assert rows & by_class[3] != {f"w{i}" for i in range(10)}
    again = ja.texts.load_text(stars, cache_dir=settings["cache_dir"] / "other")
    assert held(again.train, again.vocabulary) == rows


def test_class_without_rows_cannot_be_balanced(stars, settings):
    source = changed(stars, labels=(1, 2, 4, 5, 0))
    said = message(source, **settings)
    assert said.startswith("data.balance: no row in the train split has the label 0")


@pytest.mark.parametrize(
    ("share", "number"),
    [(0.29, 2), *(pytest.param(*each, marks=pytest.mark.more) for each in ((0.3, 3), (0.99, 9)))],
)
def test_validation_rows_are_taken_from_every_class(stars, settings, share, number):
    whole = ja.texts.load_text(stars, **settings)
    train, test, vocabulary, validation = ja.texts.load_text(changed(stars, validation=share), **settings)
    assert np.bincount(validation.targets).tolist() == [number] * 4
    assert np.bincount(train.targets).tolist() == [10 - number] * 4
    assert test.num_examples == 16
    # The vocabulary contains only words of the training rows, not those of held-out rows.
    assert held(train, vocabulary) == set(vocabulary.tokens) - {f"star{k}" for k in range(6)}
    assert held(validation, vocabulary) == set()
    assert held(train, vocabulary) < held(whole.train, whole.vocabulary)


def test_validation_rows_keep_their_labels(settings, tmp_path):
    rows = [(f"{'good' if i % 2 else 'bad'} film", i % 2) for i in range(50)]
    source = ja.texts.Jsonl(path=write(tmp_path / "v.jsonl", rows), validation=0.2)
    loaded = ja.texts.load_text(source, **settings)
    good = loaded.vocabulary.index["good"]
    for corpus, number in ((loaded.train, 40), (loaded.validation, 10)):
        np.testing.assert_array_equal(corpus.targets, np.where(counts(corpus)[:, good] > 0, 1, -1))
        assert corpus.num_examples == number
    assert same(ja.texts.load_text(source, **settings), loaded)


def test_validation_fraction_below_one_row_is_rejected(source, settings):
    said = message(changed(source, validation=0.1), **settings)
    assert said.startswith("data.validation: a fraction of 0.1 selects none of the 4 training rows")


def test_label_without_rows_is_reported(tmp_path, settings):
    path, test = write(tmp_path / "c.jsonl", ROWS), write(tmp_path / "d.jsonl", TEST[:1])
    three, told = ja.texts.Jsonl(path=path, labels=(0, 1, "neutral")), set()
    for _ in range(2):
        said = message(three, **settings)
        assert (
            said
            == "data.labels: no row in the train split has the label 'neutral'; remove it from data.labels"
        )
        told.clear()
        ja.texts.load_text(
            ja.texts.Jsonl(path=path, test_path=test), progress=lambda *report: told.add(report), **settings
        )
        assert ("data.labels: no row in the test split has the label 0", 0, 0) in told


def test_class_names_are_stored_in_the_corpus(tmp_path, settings):
    path = write(tmp_path / "c.jsonl", [("good", "pos"), ("bad", "neg"), ("so so", 3)])
    for labels, ignored in ((("neg", "pos", 3), ()), (("pos", "neg"), (3,))):
        source = ja.texts.Jsonl(path=path, labels=labels, ignore_labels=ignored)
        for _ in range(2):
            train = ja.texts.load_text(source, **settings).train
            assert train.class_names == tuple(map(str, labels))
            assert train.targets.tolist()[:2] == ([1, 0] if len(labels) == 3 else [-1, 1])


def test_reported_progress_reaches_the_end(tmp_path, settings):
    path = write(tmp_path / "a.jsonl", [("good film", i % 2) for i in range(1500)])
    told = []
    ja.texts.load_text(ja.texts.Jsonl(path=path), progress=lambda *report: told.append(report), **settings)
    assert [done for what, done, _ in told if what == "reading train"] == [0, 512, 1024, 1500]
    assert told[-1] == ("laying out", 1, 1)


class TestCache:
    @pytest.fixture
    def first(self, source, settings):
        return ja.texts.load_text(source, **settings)

    @pytest.fixture
    def no_reading(self, first, monkeypatch):
        def refuse(*_):
            raise AssertionError("read again")

        monkeypatch.setattr(module, "tokenise", refuse)
        monkeypatch.setattr(ja.texts.Jsonl, "read", refuse)

    def test_second_load_does_not_read_the_texts(self, source, settings, first, no_reading):
        assert same(ja.texts.load_text(source, **settings), first)

    def test_cache_is_used_after_the_files_are_moved(self, source, settings, first, no_reading, tmp_path):
        (tmp_path / "new").mkdir()
        moved = {
            name: str((tmp_path / name).rename(tmp_path / "new" / name)) for name in ("a.jsonl", "b.jsonl")
        }
        source = changed(source, path=moved["a.jsonl"], test_path=moved["b.jsonl"])
        assert same(ja.texts.load_text(source, **settings), first)

    def test_cache_is_used_after_class_names_change(self, source, settings, first, no_reading):
        assert first.train.class_names == ("0", "1")
        named = ja.texts.load_text(changed(source, class_names=("bad", "fine")), **settings)
        assert [named.train.class_names, named.test.class_names] == [("bad", "fine")] * 2
        plain = {split: getattr(named, split).replace(class_names=("0", "1")) for split in ("train", "test")}
        assert same(named._replace(**plain), first)

    @pytest.mark.parametrize(
        "fields",
        [
            {"min_count": 2},
            {"max_vocab": 5},
            {"max_length": 2},
            {"labels": (1, 0)},
            {"ignore_labels": (2,)},
            {"empty": "drop"},
            {"test_path": None},
            {"balance": True},
            {"validation": 0.5},
        ],
    )
    def test_cache_is_not_used_after_settings_change(self, source, settings, no_reading, fields):
        with pytest.raises(AssertionError, match="read again"):
            ja.texts.load_text(changed(source, **fields), **settings)

    @pytest.mark.parametrize("name", ["a.jsonl", "b.jsonl"])
    def test_cache_is_not_used_after_file_contents_change(self, source, settings, first, tmp_path, name):
        path = tmp_path / name
        path.write_text(path.read_text().replace("good", "film"))
        again = ja.texts.load_text(source, **settings)
        assert not same(again, first)

    def test_cache_is_not_used_after_the_tokeniser_changes(self, source, settings, no_reading, monkeypatch):
        monkeypatch.setattr(module, "_FORMAT", b"words 2")
        with pytest.raises(AssertionError, match="read again"):
            ja.texts.load_text(source, **settings)

    def test_damaged_cache_file_is_replaced(self, source, settings, first):
        (path,) = settings["cache_dir"].iterdir()
        path.write_bytes(path.read_bytes()[:-100])
        told = []
        again = ja.texts.load_text(source, progress=lambda *report: told.append(report), **settings)
        assert same(again, first)
        assert any("damaged" in what and (done, total) == (0, 0) for what, done, total in told)
        assert sorted(p.suffix for p in settings["cache_dir"].iterdir()) == [".damaged", ".npz"]

    def test_unwritable_cache_folder_does_not_fail_the_load(self, source, first, tmp_path):
        (tmp_path / "file").write_text("")
        told = []
        again = ja.texts.load_text(
            source, cache_dir=tmp_path / "file" / "x", progress=lambda *report: told.append(report)
        )
        assert same(again, first)
        assert any("nothing stored" in what for what, _, _ in told)


def test_custom_vocabulary_is_part_of_the_cache_key(source, settings):
    own = ja.texts.load_text(source, tokens=["bad", "never", "good", "watch"], **settings)
    assert own.vocabulary.tokens == ("bad", "never", "good", "watch")
    learnt = ja.texts.load_text(source, **settings)
    place = [learnt.vocabulary.index[word] for word in ("bad", "good", "watch")]
    np.testing.assert_array_equal(counts(own.train)[:, [0, 2, 3]], counts(learnt.train)[:, place])
    assert (counts(own.train)[:, 1] == 0).all()
    assert own.vocabulary.counts == (*(counts(own.train).sum(axis=0).astype(int).tolist()),)
    again = ja.texts.load_text(source, tokens=["good", "bad", "watch"], **settings)
    np.testing.assert_array_equal(counts(again.train), counts(own.train)[:, [2, 0, 3]])


def test_vocabulary_with_a_repeated_token_is_rejected(source, settings):
    assert "'good' is token 0 and token 2" in message(source, tokens=["good", "bad", "good"], **settings)


def test_texts_can_be_read_as_ordered_sequences(source, settings):
    bags, ordered = ja.texts.load_text(source, **settings), changed(source, order="kept")
    first, again = ja.texts.load_text(ordered, **settings), ja.texts.load_text(ordered, **settings)
    for split, rows in (("train", ROWS), ("test", TEST)):
        data, known = getattr(first, split), set(first.vocabulary.tokens)
        for number, (words, label) in enumerate(rows):
            ids = np.asarray(data.ids)[number][np.asarray(data.mask)[number]]
            found = [first.vocabulary.tokens[token] for token in ids]
            assert found == [word for word in tokenise(words) if word in known]
            assert data.targets[number] == 2 * label - 1
        np.testing.assert_array_equal(
            counts(jax.jit(ja.data.Sequences.bags)(data)), counts(getattr(bags, split))
        )
    for one, other in zip(jax.tree.leaves(first.train), jax.tree.leaves(again.train), strict=True):
        np.testing.assert_array_equal(one, other)
