from __future__ import annotations

import pytest
from tools import check_docs

PAGES = check_docs.pages(check_docs.ROOT)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(check_docs.ROOT).as_posix())
def test_links_lead_somewhere_and_shown_commands_print_what_is_shown(page):
    assert check_docs.broken_links(page) == []
    assert check_docs.untrue_output(page) == []


def test_the_pages_a_reader_expects_are_there():
    names = {page.relative_to(check_docs.ROOT).as_posix() for page in PAGES}
    expected = {
        "README.md",
        "CONTRIBUTING.md",
        "SCOPE.md",
        "docs/architecture.md",
        "docs/plan.md",
        "docs/simulator.md",
        "changelog.d/README.md",
    }
    assert expected - names == set()


def test_a_link_to_a_missing_file_or_heading_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# One two\n[a](page.md#one-two) [b](gone.md) [c](#three) [d](https://example.org/x) [e](page.md)\n"
        "```\n[f](in-code.md)\n```\n",
        encoding="utf-8",
    )
    assert check_docs.broken_links(page) == ["gone.md", "#three"]


def test_output_that_is_not_what_the_command_prints_is_replaced():
    text = "before\n```console\n$ muster --version\nmuster 99.9\n```\nafter\n"
    real = check_docs.with_real_output(text)
    assert real.startswith("before\n```console\n$ muster --version\nmuster 0.")
    assert real.endswith("\n```\nafter\n")
    assert "99.9" not in real
