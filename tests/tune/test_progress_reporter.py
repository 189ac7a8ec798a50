from __future__ import annotations

import re

import pytest
from tests.mistakes.views import assert_view
from tests.tune.reporting.examples import NOW, trial

from muster.base.clock import ManualClock
from muster.tune.progress_reporter import CLIReporter, JupyterNotebookReporter, ProgressReporter


def reporter(kind=CLIReporter, **keywords):
    made = kind(**keywords)
    made._clock = ManualClock(NOW + 3.97)
    made.setup(start_time=NOW, total_samples=5, metric="loss", mode="min")
    made.set_directory("/results/try", ("x", "k"))
    return made


def test_the_text_is_the_one_people_know():
    trials = [
        trial(0, loss=2.0, failures=1),
        trial(1, "RUNNING", loss=1.0),
        trial(2, "PENDING"),
    ]
    trials[1].location = {"node_ip": "10.0.0.1", "pid": 77}
    text = reporter().text(
        trials, False, "Using FIFO scheduling algorithm.", "Logical resource usage: 1.0/2 CPUs"
    )
    assert_view("legacy/status", text)


def test_a_run_of_days_says_so():
    made = reporter()
    made._clock.advance(90061.5 - 3.97)
    made._clock.jump(-3600.0)  # somebody sets the wall clock: it has run as long
    assert "1 days, 01:01:01.50)" in made.text([], False)


def test_report_prints(capsys):
    reporter().report([trial(0, loss=1.0)], True)
    assert " 1/5 (1 TERMINATED)" in capsys.readouterr().out


def test_rows_are_shared_fairly_and_all_are_there_at_the_end():
    trials = [trial(n) for n in range(30)] + [trial(n, "PENDING") for n in range(30, 32)]
    made = reporter(max_progress_rows=6)
    text = made.text(trials, False)
    assert text.count("| TERMINATED |") == 4
    assert text.count("| PENDING ") == 2
    assert "(26 TERMINATED)" in text
    assert made.text(trials, True).count("| TERMINATED |") == 30


def header(made, trials):
    text = made.text(trials, False)
    return next(line.split(" | ") for line in text.splitlines() if line.startswith("| Trial"))[3:]


def test_columns_can_be_chosen_named_and_added():
    trials = [trial(0, loss=1.0, acc=0.5)]
    made = reporter(metric_columns=["loss"], parameter_columns={"x": "the x"})
    made.add_metric_column("acc", "accuracy")
    made.add_parameter_column("k")
    assert [title.strip(" |") for title in header(made, trials)] == ["the x", "k", "loss", "accuracy"]
    with pytest.raises(ValueError, match="acc"):
        made.add_metric_column("acc")
    with pytest.raises(ValueError, match="'x'"):
        made.add_parameter_column("x")


def test_metrics_are_inferred_up_to_a_limit():
    trials = [trial(0, loss=1.0, a=1, b=2, c=3, text="t")]
    titles = [title.strip(" |") for title in header(reporter(infer_limit=2), trials)]
    assert titles[:3] + titles[4:] == ["x", "k", "iter", "loss", "a"]
    assert titles[3].endswith("(s)")


def test_long_cells_keep_their_tail():
    text = reporter(max_column_length=8).text([trial(0, loss=1.0)], False)
    assert "| ...00000 |" in text
    assert "...e (s)" in text


def test_sorting_puts_the_best_first():
    trials = [trial(n, loss=float(loss)) for n, loss in enumerate([3, 1, 2])]
    lines = reporter(sort_by_metric=True, metric="loss", mode="min").text(trials, False).splitlines()
    names = [line.split()[1] for line in lines if line.startswith("| obj")]
    assert names == ["obj_a1a89_00001", "obj_a1a89_00002", "obj_a1a89_00000"]


def test_sorting_without_a_metric_is_warned_about(caplog):
    CLIReporter(sort_by_metric=True)
    (record,) = caplog.records
    assert "sort_by_metric=True" in record.getMessage()


def test_what_the_user_gave_is_stronger_than_the_experiment():
    made = reporter(metric="acc", mode="max", total_samples=7)
    text = made.text([trial(0, loss=1.0, acc=0.5)], False)
    assert " acc=0.5 " in text
    assert " 1/7 " in text


def test_nan_is_never_the_best():
    assert "a1a89_00000 " not in reporter().text([trial(0, loss=float("nan"))], False).split("+--")[0]
    assert "a1a89_00000 " in reporter().text([trial(0, loss=1.0)], False).split("+--")[0]


def test_reports_keep_their_distance():
    made = reporter(max_report_frequency=5)
    clock = made._clock
    answers = []
    for _ in range(12):
        answers.append(made.should_report([]))
        clock.advance(1)
    assert [second for second, answer in enumerate(answers) if answer] == [0, 5, 10]
    assert made.should_report([], done=True)


@pytest.mark.parametrize(
    ("intermediate", "level", "shown"),
    [(None, 1, [False, False]), (None, 2, [False, True]), (None, 3, [True, True]), (True, 1, [True, False])],
)
def test_tables_depend_on_the_level_unless_asked_for(intermediate, level, shown):
    made = reporter(print_intermediate_tables=intermediate)
    made.set_verbosity(level)
    trials = [trial(0, loss=1.0)]
    assert ["| obj_a1a89_00000 |" in made.text(trials, done) for done in (False, True)] == shown


def test_a_notebook_gets_tables_as_html(caplog):
    made = reporter(JupyterNotebookReporter)
    (record,) = caplog.records
    assert "JupyterNotebookReporter" in record.getMessage()
    each = trial(0, loss=1.0)
    each.custom_trial_name = "<b>"
    html = made.html([each], True)
    assert "<td>&lt;b&gt;</td><td>TERMINATED</td>" in html
    assert_view("legacy/status_html", re.sub(r"[\d.]+/[\d.]+ GiB", "N/N GiB", html))


def test_the_base_class_says_what_must_be_written():
    base = ProgressReporter()
    base.setup(start_time=1.0, something_new=2)
    with pytest.raises(NotImplementedError):
        base.should_report([])
    with pytest.raises(NotImplementedError):
        base.report([], False)
