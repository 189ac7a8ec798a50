"""Compare Ray Tune 2.60, Optuna alone and ours on the same jobs, in turns, in wall seconds."""

from __future__ import annotations

import importlib.util

from bench import table, tune_baseline, tune_libraries, tune_million, tune_start
from bench.options import Options
from bench.ours import tune as ours
from bench.peer import tune as peer
from bench.tune_job import Fit, Job, state_bytes
from bench.tune_processes import BenchProcesses, Side, in_turns

SLOW_FILES_MS = 0.3  # 0.1 to 0.2 where nothing was deleted

ROW = ("experiment", "Ray Tune /s", "ours /s", "ours / Ray", "ours CPU ms each")


def run(options: Options) -> dict[str, float]:
    """Measure, print the tables, return the figures."""
    figures: dict[str, float] = {}
    with BenchProcesses(options) as processes:
        for name, case in CASES.items():
            if options.wants(name):
                figures |= case(processes)
                processes.renew_ours()
    return figures


def compare(
    processes: BenchProcesses, name: str, mine: tuple[Job, int], theirs: tuple[Job, int], *others: Side
) -> tuple[Side, Side]:
    """Run both sides on a job each, as often as given; Ray only if it takes part; others in between."""
    (my_job, my_repeats), (their_job, their_repeats) = mine, theirs
    us = Side("ours", lambda: processes.ours(ours.fit, my_job, processes.storage()), my_repeats)
    them = Side("Ray Tune", lambda: processes.ray(peer.fit, their_job, processes.storage()), their_repeats)
    processes.ours(ours.fit, Job(trials=2), processes.storage())
    in_turns(name, us, *others, *([them] if processes.with_ray else []))
    return us, them


def rate_figures(figure: str, name: str, us: Side[Fit], them: Side[Fit]) -> dict[str, float]:
    """Return trials or results per second of both, and their ratio."""
    rate = Fit.trials_per_s.fget if figure == "trials" else Fit.results_per_s.fget
    figures = {f"{figure}_per_s.{name}": us.median(rate)}
    if figure == "results":
        figures[f"results_per_s.{name}.since_first"] = us.median(Fit.results_per_s_since_first.fget)
    if them.runs:
        figures[f"peer_{figure}_per_s.{name}"] = them.median(rate)
        figures[f"{figure}_speedup.{name}"] = us.median(rate) / them.median(rate)
    if them.runs and figure == "results":
        steady = Fit.results_per_s_since_first.fget
        figures[f"peer_results_per_s.{name}.since_first"] = them.median(steady)
        figures[f"results_speedup.{name}.since_first"] = us.median(steady) / them.median(steady)
    return figures


def rate_row(title: str, figure: str, name: str, us: Side[Fit], figures: dict[str, float]) -> tuple[str, ...]:
    theirs = figures.get(f"peer_{figure}_per_s.{name}")
    each = us.median(lambda fit: fit.cpu_s / (fit.job.trials if figure == "trials" else fit.job.results))
    return (
        title,
        "-" if theirs is None else f"{theirs:,.1f}",
        f"{figures[f'{figure}_per_s.{name}']:,.0f}",
        table.times(figures.get(f"{figure}_speedup.{name}")),
        f"{1000 * each:.3f}",
    )


def trials(processes: BenchProcesses) -> dict[str, float]:
    """Measure trivial trials, one report each, with a process each or processes used again."""
    figures: dict[str, float] = {}
    rows = []
    files = Side(
        "bare files",
        lambda: tune_baseline.files_s(processes.size(500, 100), processes.storage()),
        processes.size(5, 3),
    )
    for name, reuse, mine, theirs in (
        (
            "reuse",
            True,
            (processes.size(2000, 400), processes.size(5, 3)),
            (processes.size(2000, 400), processes.size(3, 1)),
        ),
        (
            "noreuse",
            False,
            (processes.size(500, 100), processes.size(5, 3)),
            (processes.size(60, 10), processes.size(3, 1)),
        ),
    ):
        us, them = compare(
            processes,
            f"trials, {name}",
            (Job(mine[0], reuse=reuse), mine[1]),
            (Job(theirs[0], reuse=reuse), theirs[1]),
            *([files] if reuse else []),
        )
        figures |= rate_figures("trials", name, us, them)
        title = f"{mine[0]} trials (Ray: {theirs[0]}), reuse_actors={reuse}"
        rows.append(rate_row(title, "trials", name, us, figures))
    table.show("tune: trivial trials, loggers on", ROW, rows)
    figures["files_ms_per_trial"] = 1000 * files.median()
    table.note(f"a directory with five small files alone takes {figures['files_ms_per_trial']:.3f} ms here")
    if figures["files_ms_per_trial"] > SLOW_FILES_MS:
        table.note(
            "that is slow, and so are our trials: many files were deleted near it within the last minutes "
            "(README, tune); run it again with TMPDIR on a RAM disk, or later"
        )
    return figures


def results(processes: BenchProcesses) -> dict[str, float]:
    """Measure reports of one trial and of sixteen at once; and the pipe that no report can beat."""
    one = Job(trials=1, reports=processes.size(10_000, 2000))
    rounds = processes.size(20_000, 5000)
    pipe = Side("a pipe", lambda: tune_baseline.round_trips_per_s(rounds), processes.size(5, 3))
    us, them = compare(
        processes, "results, one trial", (one, processes.size(7, 3)), (one, processes.size(3, 1)), pipe
    )
    figures = rate_figures("results", "one", us, them)
    figures["pipe_round_trips_per_s"] = pipe.median()
    figures["results_over_pipe"] = figures["results_per_s.one"] / pipe.median()
    rows = [rate_row(f"one trial, {one.reports} reports", "results", "one", us, figures)]
    many = Job(trials=16, reports=processes.size(250, 25), cpus=0.125)
    us, them = compare(
        processes, "results, sixteen trials", (many, processes.size(7, 3)), (many, processes.size(3, 1))
    )
    figures |= rate_figures("results", "sixteen", us, them)
    rows.append(rate_row(f"16 at once, {many.reports} reports each", "results", "sixteen", us, figures))
    table.show("tune: results, loggers on", ROW, rows)
    over = figures["results_over_pipe"]
    table.note(f"a pipe: {pipe.median():,.0f} round trips/s; our one trial reaches {over:.3f} of that")
    return figures


def growth(processes: BenchProcesses) -> dict[str, float]:
    """Measure the cost per trial with many and with few, without start and end; memory of the driver."""
    few, many, mark = 200, processes.size(20_000, 2000), processes.size(1000, 200)
    repeats = processes.size(9, 5)
    nothing = Side("ours, 2 trials", lambda: processes.ours(ours.fit, Job(2), processes.storage()), repeats)
    small = Side(
        f"ours, {few} trials", lambda: processes.ours(ours.fit, Job(few), processes.storage()), repeats
    )

    def big_fit() -> Fit:
        processes.renew_ours()
        return processes.ours(ours.fit, Job(many), processes.storage(), (mark,))

    big = Side(f"ours, {many} trials", big_fit, processes.size(2, 1))
    processes.ours(ours.fit, Job(few), processes.storage())
    in_turns("growth", nothing, small, big)
    figures: dict[str, float] = {}
    rows = []
    for suffix, value in (("", lambda fit: fit.wall_s), (".cpu", lambda fit: fit.cpu_s)):
        fixed = nothing.median(value)
        low, high = ((side.median(value) - fixed) / (n - 2) for side, n in ((small, few), (big, many)))
        figures[f"growth.{few}_{many}{suffix}"] = high / low
        what = "CPU" if suffix else "wall"
        rows.append(
            (what, f"{1000 * fixed:.0f}", f"{1000 * low:.3f}", f"{1000 * high:.3f}", f"{high / low:.2f}")
        )
    columns = ("ours", "experiment itself, ms", f"ms per trial of {few}", f"of {many}", "factor")
    table.show("tune: what a trial costs when there are many", columns, rows)
    per_trial = big.median(lambda fit: (fit.rss_bytes[many] - fit.rss_bytes[mark]) / (many - mark))
    figures["driver_mb_per_10k"] = per_trial * 10_000 / 1e6
    table.note(f"memory of the driver: {figures['driver_mb_per_10k']:.1f} MB per 10,000 finished trials")
    return figures


def restore(processes: BenchProcesses) -> dict[str, float]:
    """Measure from the path of a finished experiment to its results, and the state per trial."""
    job = Job(processes.size(2000, 60))
    repeats = processes.size(5, 3)
    table.progress(f"tune: restore: {job.trials} trials to restore")
    mine = processes.ours(ours.fit, job, processes.storage())
    theirs = processes.ray(peer.fit, job, processes.storage()) if processes.with_ray else None
    figures = {"state_bytes_per_trial": state_bytes(mine.directory) / job.trials}
    if theirs:
        figures["peer_state_bytes_per_trial"] = state_bytes(theirs.directory) / job.trials
        figures["state_bytes_ratio"] = state_bytes(theirs.directory) / state_bytes(mine.directory)
        figures[f"peer_trials_per_s.{job.trials}"] = theirs.trials_per_s
    rows = []
    for suffix, then in (("", "get_results"), (".fit", "fit")):
        us = Side("ours", lambda then=then: processes.ours(ours.restore, job, mine.directory, then), repeats)
        sides = [us]
        if theirs:
            them = Side(
                "Ray", lambda then=then: processes.ray(peer.restore, job, theirs.directory, then), repeats
            )
            sides.append(them)
        in_turns(f"restore, {then}", *sides)
        figures[f"seconds.restore{suffix}"] = us.median()
        if theirs:
            figures[f"peer_seconds.restore{suffix}"] = them.median()
            figures[f"restore_speedup{suffix}"] = them.median() / us.median()
        rows.append(
            (
                f"Tuner.restore(path).{then}()",
                table.seconds(them.median()) if theirs else "-",
                table.seconds(us.median()),
                table.times(figures.get(f"restore_speedup{suffix}")),
            )
        )
    rows.append(
        (
            "bytes of state per trial",
            f"{figures['peer_state_bytes_per_trial']:,.0f}" if theirs else "-",
            f"{figures['state_bytes_per_trial']:,.0f}",
            table.times(figures.get("state_bytes_ratio")),
        )
    )
    table.show(
        f"tune: an experiment of {job.trials} finished trials", ("", "Ray Tune", "ours", "Ray / ours"), rows
    )
    return figures


def optuna(processes: BenchProcesses) -> dict[str, float]:
    """Measure TPE through Tuner.fit, with processes and log, over study.optimize in one process."""
    if importlib.util.find_spec("optuna") is None:
        table.note("Optuna is not installed, so optuna_overhead is absent: pip install 'muster-ml[bench]'")
        return {}
    number = processes.size(2000, 200)
    repeats = processes.size(3, 3)
    alone = Side("Optuna alone", lambda: processes.ours(ours.optuna_alone, number), repeats)
    through = Side("ours", lambda: processes.ours(ours.with_optuna, number, processes.storage()), repeats)
    model = Side("auto", lambda: processes.ours(ours.with_model, number, processes.storage()), repeats)
    processes.ours(ours.optuna_alone, 20)
    processes.ours(ours.with_optuna, 20, processes.storage())
    in_turns("optuna", alone, through, model)
    overhead = through.median() / alone.median()
    table.show(
        f"tune: {number} trivial trials chosen by TPE",
        ("", "s", "over Optuna alone"),
        [
            ("study.optimize, in one process, nothing written", table.seconds(alone.median()), "1.00"),
            ("Tuner.fit with OptunaSearch", table.seconds(through.median()), f"{overhead:.2f}"),
            (
                'Tuner.fit with search_alg="auto"',
                table.seconds(model.median()),
                f"{model.median() / alone.median():.2f}",
            ),
        ],
    )
    return {
        "optuna_overhead": overhead,
        "model_speedup": alone.median() / model.median(),
        "seconds.model": model.median(),
        "seconds.optuna": through.median(),
        "peer_seconds.optuna": alone.median(),
    }


CASES = {
    "trials": trials,
    "results": results,
    "import": tune_start.imports,
    "first_result": tune_start.first_result,
    "growth": growth,
    "restore": restore,
    "optuna": optuna,
    "million": tune_million.million,
    "libraries": tune_libraries.libraries,
}
