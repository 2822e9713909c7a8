"""Sphinx configuration; the site is built without network access: sphinx-build -W -b html docs site."""

import shutil
import sys
from pathlib import Path

import jaxattn

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_extensions"))
# Sphinx reads pages from this folder only, and resolves symbolic links, so the notebooks are copied here.
shutil.copytree(HERE.parent / "notebooks", HERE / "notebooks", dirs_exist_ok=True)

project, author = "jaxattn", "The jaxattn developers"
project_copyright = author
version = release = jaxattn.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "myst_nb",
    "docstrings",
    "links",
    "mathml",
    "names",
    "tables",
    "published",
    "assets",
]
exclude_patterns = ["_extensions"]

html_theme = "sphinx_book_theme"
html_title = f"jaxattn {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_math_renderer = "mathml"
html_theme_options = {
    "navbar_persistent": [],
    "article_header_start": ["toggle-primary-sidebar.html", "breadcrumbs.html"],
    "use_download_button": False,
    "use_fullscreen_button": False,
    "repository_url": jaxattn.__url__,
    "use_repository_button": bool(jaxattn.__url__),
}

myst_enable_extensions = ["attrs_inline", "dollarmath"]
myst_heading_anchors = 3
# Show the stored outputs of notebooks, and load no scripts for widgets.
nb_execution_mode = "off"
nb_ipywidgets_js: dict[str, dict[str, str]] = {}

autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Source"]
default_role = "code"
# Convert dashes, but not the primes of formulas.
smartquotes_action = "D"
