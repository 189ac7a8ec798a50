from __future__ import annotations

from pathlib import Path

import pytest
from tests.page.samples import write_experiment

from muster.tune.config import RunConfig
from muster.tune.execution.page_process import PageProcess, frame_of
from muster.tune.reporting.reporter import Reporter


class Notes(Reporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


def shown(directory: Path) -> str:
    notes = Notes()
    page = PageProcess(str(directory), notes)
    page.setup()
    page._thread.join(100)
    page.on_step_end(1, [])
    page._process.kill()
    page._process.stdout.close()
    return notes.lines[0]


@pytest.mark.slow
def test_the_address_of_the_page_is_noted_once_it_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert shown(write_experiment(tmp_path / "e", 1, 1)).split()[-1].startswith("http://127.0.0.1:")


@pytest.mark.slow
def test_a_page_that_cannot_start_is_a_warning(tmp_path: Path):
    line = shown(tmp_path)
    assert line.startswith("warning: ")
    assert "http" not in line
    assert str(tmp_path) in line


def test_the_frame_of_a_notebook_uses_the_notebooks_host_name():
    text = frame_of("http://127.0.0.1:8787/?launch=x&open=e%3D1")
    assert "${location.hostname}:8787/?launch=x&open=e%3D1`" in text


def test_a_page_that_is_neither_true_nor_false_is_refused():
    with pytest.raises(ValueError, match=r"RunConfig\(page='yes'\)"):
        RunConfig(page="yes")
