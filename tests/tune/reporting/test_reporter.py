from __future__ import annotations

import io
import sys
import types

import pytest
from tests.mistakes.views import assert_view
from tests.tune.reporting.examples import environment, run_info, trial

from muster.base.clock import ManualClock
from muster.tune.config import RunConfig
from muster.tune.progress_reporter import (
    CLIReporter,
    DetailedLegacyReporter,
    JupyterNotebookReporter,
    LegacyReporter,
    detect_reporter,
)
from muster.tune.reporting import Reporter, reporter_for
from muster.tune.reporting.live import DetailedLiveReporter, LiveReporter
from muster.tune.reporting.notebook import NotebookReporter
from muster.tune.reporting.plain import DetailedPlainReporter, PlainReporter
from muster.tune.reporting.reporter import in_notebook


class Tty(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True

    def fileno(self):
        return 1


def chosen(stream=None, *, is_notebook=False, env=None, **run):
    stream = io.StringIO() if stream is None else stream
    config = RunConfig(**run)
    made = reporter_for(
        config, clock=ManualClock(), environment=env or environment(), stream=stream, is_notebook=is_notebook
    )
    return type(made)


@pytest.mark.conformance("C-209")
@pytest.mark.parametrize("stream", [io.StringIO(), Tty()])
@pytest.mark.parametrize("reporter", [None, CLIReporter()])
def test_verbose_zero_is_silent_everywhere(stream, reporter):
    assert chosen(stream, verbose=0, progress_reporter=reporter) is Reporter


@pytest.mark.parametrize(
    ("level", "plain", "live"),
    [
        (1, PlainReporter, LiveReporter),
        (2, DetailedPlainReporter, DetailedLiveReporter),
        (3, DetailedPlainReporter, DetailedLiveReporter),
    ],
)
def test_a_terminal_has_a_live_view_and_a_log_has_lines(level, plain, live):
    assert chosen(verbose=level) is plain
    assert chosen(Tty(), verbose=level) is live
    assert chosen(Tty(), verbose=level, env=environment(TERM="dumb")) is plain


@pytest.mark.conformance("C-210")
def test_a_notebook_has_html():
    assert chosen(verbose=1, is_notebook=True) is NotebookReporter


def test_a_given_reporter_is_driven():
    assert chosen(Tty(), verbose=1, progress_reporter=CLIReporter()) is LegacyReporter
    assert chosen(Tty(), verbose=2, progress_reporter=CLIReporter()) is DetailedLegacyReporter


def test_the_old_console_is_there_for_those_who_ask():
    assert chosen(Tty(), verbose=1, env=environment(RAY_AIR_NEW_OUTPUT="0")) is LegacyReporter


@pytest.mark.conformance("C-210")
def test_the_old_reporter_fits_the_place(caplog):
    assert type(detect_reporter(is_notebook=False)) is CLIReporter
    assert type(detect_reporter(is_notebook=True)) is JupyterNotebookReporter


@pytest.mark.conformance("C-210")
@pytest.mark.parametrize(
    ("shell", "answer"),
    [(None, False), (types.SimpleNamespace(), False), (types.SimpleNamespace(kernel=1), True)],
)
def test_only_a_kernel_makes_a_notebook(monkeypatch, shell, answer):
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert in_notebook() is answer


def test_without_ipython_there_is_no_notebook(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert in_notebook() is False


def test_a_silent_run_says_only_how_to_go_on_and_on_the_error_stream(capsys):
    reporter = Reporter()
    reporter.begin(run_info())
    reporter.end(interrupted=False, trials=[trial(0)])
    assert capsys.readouterr() == ("", "")
    reporter.end(interrupted=True, trials=[trial(0)])
    reporter.abort()
    out, err = capsys.readouterr()
    assert out == ""
    assert_view("live/silent_stopped", err)


def test_a_silent_run_has_no_hooks():
    from muster.tune.callback import RAY_HOOKS, Callback

    assert [hook for hook in RAY_HOOKS if getattr(Reporter, hook) is not getattr(Callback, hook)] == []
