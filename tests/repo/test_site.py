"""The checks of the built site find what is wrong; the site itself is built and checked by `make docs`."""

from __future__ import annotations

import shutil

import pytest
from tools import check_site

BROWSER = next(filter(None, map(shutil.which, check_site.BROWSERS)), None)
STYLE = """<style>body { background: white; color: black }
body[data-theme=dark] { background: black; color: white }</style>"""
SEARCH = f"""<!doctype html><title>s</title>{STYLE}<body><div id="search-results"></div><script>
if (location.search.includes("known"))
  document.querySelector("div").innerHTML = '<ul class="search"><li><a href="docs/x.html">x</a></li></ul>';
</script>"""
GOOD = (
    f'<!doctype html><title>g</title>{STYLE}<body><article><h1 id="top">Good</h1><p>Text</p></article></body>'
)
BAD = f"""<!doctype html><title>b</title>{STYLE}<body><article><p style="width: 600px; color: #aaa">pale</p>
<img src="gone.png"></article><script>console.error("an error")</script></body>"""


def site(folder, **pages):
    for name, text in pages.items():
        file = folder / ("docs" if name != "search" else "") / f"{name}.html"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder


def test_links_to_missing_pages_and_anchors_are_found(tmp_path):
    links = (
        '<a href="good.html#top">a</a><a href="good.html#gone">b</a><a href="gone.html">c</a>'
        '<a href="#here" id="here">d</a><a href="https://example.org/x">e</a><img src="gone.png">'
    )
    found = list(check_site.Site(site(tmp_path, good=GOOD, links=links)).broken_links())
    assert found == [
        f"docs/links.html: broken link {name}" for name in ("good.html#gone", "gone.html", "gone.png")
    ]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no browser on this machine")
def test_a_browser_finds_what_is_too_wide_too_pale_missing_or_an_error_and_nothing_else(tmp_path):
    good = site(tmp_path / "good", good=GOOD, search=SEARCH)
    assert check_site.browser_problems(good, BROWSER, {"known": "docs/x"}) == []
    bad = site(tmp_path / "bad", bad=BAD, search=SEARCH)
    found = "\n".join(check_site.browser_problems(bad, BROWSER, {"known": "docs/y", "absent": "docs/x"}))
    for problem in (
        "docs/bad.html at 400: 208 pixels too wide",
        "docs/bad.html at 400: light: hard to read (2.3): pale",
        "docs/bad.html at 1280: no picture",
        "the search finds nothing for absent, not docs/x",
        "the search finds docs/x for known, not docs/y",
        'console: "an error"',
        "not found: GET /docs/gone.png",
    ):
        assert problem in found
