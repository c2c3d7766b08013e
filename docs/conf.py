"""Build the site: `tox run -e docs` writes it to build/site; its first page is build/site/index.html."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive, directives

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "site"), str(DOCS.parent)]

import docstrings  # noqa: E402
import formulas  # noqa: E402
import pages  # noqa: E402

from parity_tests.reports import heatmap  # noqa: E402

PROJECT = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Source"]

project = PROJECT["name"]
author = PROJECT["authors"][0]["name"]
copyright = author
version = release = PROJECT["version"]
language = "en"
smartquotes = False

extensions = [
    "myst_parser",
    "sphinx_design",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx.ext.napoleon",
    "autoapi.extension",
]
exclude_patterns = ["site"]
suppress_warnings = ["autoapi.python_import_resolution", "ref.python"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
copybutton_prompt_text = "$ "

html_theme = "furo"
html_title = project
html_favicon = "site/static/favicon.svg"
html_static_path = ["site/static", str(heatmap.STYLES), str(heatmap.SCRIPT)]
html_css_files = ["site.css", heatmap.STYLES.name]
html_js_files = [heatmap.SCRIPT.name]
html_copy_source = False
html_show_sphinx = False
pygments_style, pygments_dark_style = "friendly", "github-dark"

autoapi_dirs = [str(DOCS.parent / name) for name in ("attention_core", "backends", "parity_tests")]
autoapi_root = "api"
autoapi_add_toctree_entry = False
autoapi_options = ["members", "show-module-summary"]
autoapi_member_order = "bysource"
autoapi_python_class_content = "class"
autoapi_keep_files = False
autoapi_ignore = pages.ignored_by_the_api(DOCS.parent)
napoleon_custom_sections = [("Arrays", "params_style")]

LINK_OUTSIDE = re.compile(r"\]\(\.\./([^)#]+)(#[^)]*)?\)")


def setup(app: Any) -> None:
    """Write the generated pages before Sphinx looks for files; links to other files of the project go to its source."""
    pages.write(DOCS)
    app.add_directive("formula", Formula)
    app.connect("source-read", link_to_the_source)
    app.connect("autodoc-process-docstring", docstrings.as_restructured_text, priority=100)
    app.connect("autoapi-skip-member", skip)
    for part in ("description", "options", "epilog"):
        app.connect(f"sphinx-click-process-{part}", escape)


class Formula(Directive):
    """The directive `formula`: its content as it stands in the specification, with `:names:` of arrays and options."""

    has_content = True
    option_spec: ClassVar = {"names": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """The formula as a node of HTML."""
        lines = formulas.mathml(" ".join(self.content), self.options.get("names", "").split())
        return [nodes.raw("", f'<div class="formula">\n{lines}\n</div>', format="html")]


def link_to_the_source(app: Any, name: str, source: list[str]) -> None:
    """Replace links that leave docs/ by links to the repository."""
    source[0] = LINK_OUTSIDE.sub(rf"]({REPOSITORY}/blob/main/\1\2)", source[0])


def escape(app: Any, command: Any, lines: list[str]) -> None:
    """Escape patterns in help texts, which are not emphasis, and addresses of schedulers, which are not links."""
    lines[:] = [line.replace("*", "\\*").replace("://", "\\://") for line in lines]


def skip(app: Any, what: str, name: str, thing: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out what is private, and what only one module uses."""
    return True if name.rpartition(".")[2].startswith("_") else None
