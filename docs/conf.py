"""Configures the documentation site: `make docs` builds it into build/docs/html.

The source folder is the root of the repository, so that a link between two pages leads to the same place on
the site, in an editor and on a page that shows the repository.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import muster
from muster.cli.main import cli

ROOT = Path(__file__).resolve().parent.parent
# Pictures that tools/pictures.py has just made; without them the site shows those of the repository.
NEW_PICTURES = ROOT / "build" / "docs" / "pictures"

project = "muster"
author = "the authors of muster"
release = muster.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
source_suffix = {".md": "markdown"}
include_patterns = ["*.md", "docs/*.md", "docs/*/*.md", "bench/README.md", "changelog.d/README.md"]
exclude_patterns = [".*", "build", "dist", "src", "tests", "tools", "deploy", "examples"]
highlight_language = "text"

# Anchors of headings are those of the usual renderers of Markdown: `page.md#a-heading` works in all of them.
myst_heading_anchors = 4

# Docstrings are plain text, with names in single backticks and Google's sections.
default_role = "code"
napoleon_use_ivar = True
autodoc_member_order = "groupwise"
autodoc_default_options = {"members": True, "undoc-members": False}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "muster"
html_static_path = ["site"]
html_css_files = ["site.css"]
html_extra_path = ["site/root"]
html_copy_source = False
html_show_sourcelink = False


def show_new_pictures(app: object, exception: Exception | None) -> None:
    """Replaces the pictures of the repository by those that were just made."""
    images = ROOT / "build" / "docs" / "html" / "_images"
    for picture in NEW_PICTURES.glob("*.*") if exception is None else ():
        shutil.copy(picture, images / picture.name)


def add_help_texts(app: object, name: str, source: list[str]) -> None:
    """Adds the help text of every command to the page about commands."""
    if name == "docs/reference/commands":
        source[0] += "".join(help_texts(cli, click.Context(cli, info_name="muster")))


def help_texts(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yields a heading and the help text of a command, then those of its sub-commands."""
    yield f"\n## `{context.command_path}`\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from help_texts(inner, click.Context(inner, parent=context, info_name=name))


def keep_first_paragraph(app: object, what: str, name: str, *rest: Any) -> None:  # noqa: ANN401
    """Leaves out what the docstring of a module says to its maintainers."""
    lines = rest[-1]
    if what == "module" and "" in lines:
        del lines[lines.index("") :]


def setup(app: object) -> None:
    app.connect("autodoc-process-docstring", keep_first_paragraph)  # type: ignore[attr-defined]
    app.connect("build-finished", show_new_pictures)  # type: ignore[attr-defined]
    app.connect("source-read", add_help_texts)  # type: ignore[attr-defined]
