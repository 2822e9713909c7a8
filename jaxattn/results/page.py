"""Pages of HTML that hold everything they show, in one style."""

import base64
from pathlib import Path
from typing import Any

STYLE = Path(__file__).with_name("page.css")


def fill(template: Path, **content: Any) -> str:
    """Fill a template.

    Args:
        template: a file in Jinja's language; {{ style }} stands for the style that all pages share, and
            | embedded turns bytes into base64.
        content: what it names.

    Returns:
        HTML; every text of the content is escaped.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.undefined = jinja2.StrictUndefined
    environment.filters["embedded"] = lambda data: base64.b64encode(data).decode()
    style = Markup(STYLE.read_text(encoding="utf-8"))
    return environment.from_string(template.read_text(encoding="utf-8")).render(style=style, **content)
