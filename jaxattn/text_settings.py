"""All settings of texts, as docs/texts.md has them.

python -m jaxattn.text_settings > docs/texts.md
"""

from jaxattn.core.docstrings import first_line, meanings, table, written
from jaxattn.data.readers import READERS
from jaxattn.study.kinds import fields_of

OPENING = """# Texts

What `[data]` may say of labelled texts. This page is made of the classes themselves:
`python -m jaxattn.text_settings`.

```toml
[data]                                            # AG News as CSV: class, title, description
kind = "csv"
path = "train.csv"
test_path = "test.csv"
columns = ["label", "title", "description"]
text = ["title", "description"]
labels = [1, 2, 3, 4]
class_names = ["world", "sports", "business", "technology"]
validation = 0.1
min_count = 5
```

`jaxattn data SWEEP` shows the corpora that this makes before anything is run; `--set data.columns=null` takes
out what the file says. `class_names`, `path`, `test_path` and `data_dir` change no number: with others too, a
folder of results is continued, and the texts are not read again."""

HELD_OUT = """## Held-out texts

The test split is for the numbers that are reported, and `validation` holds training rows out to choose by. At
every measured step there are `validation_loss` and `validation_accuracy` then, as there are `test_loss` and
`test_accuracy`, and `test_accuracy_best_on_validation` is the test accuracy at the step with the best
validation accuracy so far in the phase, the first one of several. `test_accuracy_best_on_test` is chosen on
the test split itself, and so is too good. The vocabulary is that of the rows that are trained on."""


def page() -> str:
    """Write all kinds and all settings in Markdown, what every kind has in a table of its own."""
    kinds = [[f"`{kind}`", first_line(target)] for kind, target in READERS.items()]
    settings: dict[tuple[str, str, str], list[str]] = {}
    for kind, target in READERS.items():
        meaning = meanings(target)
        for field in fields_of(target):
            settings.setdefault((field.name, written(field.default), meaning[field.name]), []).append(kind)
    several = [row for row, own in settings.items() if len(own) < len(READERS)]
    of_some = [
        [f"`{row[0]}`", ", ".join(settings[row]), *row[1:]]
        for row in sorted(several, key=lambda row: [name for name, *_ in several].index(row[0]))
    ]
    of_every = [[f"`{row[0]}`", *row[1:]] for row in settings if row not in several]
    sections = [
        OPENING,
        "## Kinds",
        table(["kind", "what it reads"], kinds),
        "## What they read",
        table(["setting", "kinds", "default", "meaning"], of_some),
        "## What every kind makes of it",
        table(["setting", "default", "meaning"], of_every),
        HELD_OUT,
    ]
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    print(page(), end="")
