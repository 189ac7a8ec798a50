"""The page's scripts have types where JSDoc names them; without Node that is said and is no error."""

from pathlib import Path

import pytest
from tools import check_js


@pytest.mark.slow
def test_the_types_of_the_pages_scripts_hold(capfd):
    compiler, reason = check_js.find_compiler()
    if compiler is None:
        pytest.skip(reason)
    assert (check_js.main(), capfd.readouterr().out) == (0, "")


def test_without_node_the_check_says_so_and_passes(monkeypatch, capfd):
    monkeypatch.setattr(check_js.shutil, "which", lambda name: None)
    assert check_js.main() == 0
    assert "there is no Node here" in capfd.readouterr().out


def test_nothing_of_npm_is_left_in_the_clone():
    root = Path(check_js.ROOT)
    assert [
        name for name in ("node_modules", "package-lock.json", "package.json") if (root / name).exists()
    ] == []
