from __future__ import annotations

import pytest
from tools import changelog


def write(folder, **texts):
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name.replace('_', '.')[1:]}.md").write_text(text, encoding="utf-8")
    return folder


def test_the_changelog_says_what_the_fragments_say(root):
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    assert text == changelog.changelog(root / "changelog.d", text), "run `make changelog`"


def test_fragments_become_items_by_kind_and_the_newest_issue_comes_first(tmp_path):
    folder = write(
        tmp_path / "d", i9_fixed="Nine.\n", i2_added="Two.\n", i10_added="Ten,\nand more.\n\nAgain.\n"
    )
    (folder / "README.md").write_text("no fragment", encoding="utf-8")
    text = changelog.changelog(folder, "")
    items = "### Added\n\n- Ten,\n  and more.\n\n  Again.\n- Two.\n\n### Fixed\n\n- Nine.\n"
    assert text == f"{changelog.TITLE}\n\n{changelog.NEXT}\n\n{items}"


def test_a_fragment_with_several_items_keeps_them(tmp_path):
    folder = write(tmp_path / "d", i1_added="- One.\n- Two,\n  longer.\n")
    assert changelog.changelog(folder, "").endswith("### Added\n\n- One.\n- Two,\n  longer.\n")


def test_a_release_keeps_its_items_when_new_fragments_come(tmp_path):
    folder = write(tmp_path / "d", i1_added="One.")
    released = changelog.changelog(folder, "", "## 0.1.0 (2026-12-01)")
    (folder / "1.added.md").unlink()
    assert changelog.changelog(folder, released) == released
    later = changelog.changelog(write(folder, i2_changed="Two."), released)
    assert later.count("\n## ") == 2
    assert changelog.changelog(folder, later) == later
    assert later.endswith("- Two.\n\n## 0.1.0 (2026-12-01)\n\n### Added\n\n- One.\n")


def test_a_fragment_with_another_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"3\.new\.md: name it ISSUE\.KIND\.md"):
        changelog.changelog(write(tmp_path / "d", i3_new="x"), "")


def test_before_the_first_release_everything_is_added_in_two_lines_at_most(root):
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased, *releases = text.split("\n## ")[1:]
    items = unreleased.split("\n- ")[1:]
    assert releases or ("### Changed" not in unreleased and "### Fixed" not in unreleased)
    assert [item for item in items if item.strip().count("\n") > 1] == []
