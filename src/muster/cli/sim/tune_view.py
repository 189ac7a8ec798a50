"""How the answers of `muster sim tune` look: tables, one JSON document, a picture."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import RenderableType
from rich.table import Table

from muster.cli.sim.tune_command import Reply
from muster.cli.tune.table import plain, strict_json
from muster.errors import ConfigError
from muster.sim.tune.what_if import Answer, over_time

FORMAT = 1


def reply_pages(reply: Reply) -> list[RenderableType]:
    """Who found what and when; the best value over time; the best config."""
    return [_found(reply), "", _over_time(reply), "", *_configs(reply)]


def _found(reply: Reply) -> Table:
    first = reply.answers[0]
    title = f"{reply.wish.workers} workers, {first.metric} ({first.mode}); node-hours used by then and in all"
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("scheduler", overflow="fold")
    for column in ("best", "found at", "by then", "ended at", "node-h", "trials"):
        table.add_column(column, justify="right", no_wrap=True)
    for answer in reply.answers:
        best = answer.best
        table.add_row(
            answer.scheduler,
            "-" if best is None else f"{best.value:.6g}",
            "-" if best is None else clock(best.at_s),
            "-" if best is None else f"{best.worker_s / 3600.0:.3g} h",
            clock(answer.end_s),
            f"{answer.worker_s / 3600.0:.3g}",
            f"{answer.trials}" + (f" ({answer.failed} failed)" if answer.failed else ""),
        )
    return table


def _over_time(reply: Reply) -> Table:
    title = "best value over time"
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("after", justify="right")
    for answer in reply.answers:
        table.add_column(answer.scheduler, justify="right")
    for row in over_time(reply.answers):
        shown = [row.best[answer.scheduler] for answer in reply.answers]
        table.add_row(clock(row.at_s), *("-" if value is None else f"{value:.6g}" for value in shown))
    return table


def _configs(reply: Reply) -> list[str]:
    return [
        f"best of {answer.scheduler}: {plain(answer.best.config)} at iteration {answer.best.iteration}"
        for answer in reply.answers
        if answer.best is not None
    ]


def clock(seconds: float) -> str:
    """`1:02:03`, days are hours; less than a minute in seconds."""
    if seconds < 60.0:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def as_document(reply: Reply) -> bytes:
    content = {
        "format": FORMAT,
        "trace": reply.wish.trace,
        "workers": reply.wish.workers,
        "answers": [_answer(answer) for answer in reply.answers],
        "over_time": [{"at_s": row.at_s, "best": dict(row.best)} for row in over_time(reply.answers)],
        "notes": reply.remarks,
    }
    return strict_json(content, indent=2).encode()


def _answer(answer: Answer) -> dict[str, object]:
    fields = ("scheduler", "metric", "mode", "end_s", "worker_s", "trials", "failed", "results")
    found = [{name: getattr(one, name) for name in one.__struct_fields__} for one in answer.found]
    return {
        **{name: getattr(answer, name) for name in fields},
        "best": found[-1] if found else None,
        "found": found,
    }


def draw(reply: Reply, path: Path) -> None:
    """Steps, as the best value changes when something is found; ConfigError without matplotlib."""
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib: pip install 'muster[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, cells = pyplot.subplots(1, 2, figsize=(12, 4.5))
    for cell, axis, label in zip(cells, ("at_s", "worker_s"), ("hours", "node-hours"), strict=True):
        for answer in reply.answers:
            end = answer.end_s if axis == "at_s" else answer.worker_s
            moments = [getattr(one, axis) / 3600.0 for one in answer.found] + [end / 3600.0]
            values = [one.value for one in answer.found]
            cell.step(
                moments,
                [*values, *values[-1:]] if values else [float("nan")],
                where="post",
                label=answer.scheduler,
            )
        cell.set(xlabel=label, ylabel=reply.answers[0].metric)
        cell.grid(alpha=0.3)
        cell.legend(fontsize=8)
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--plot {path}: cannot be written ({error}); try a name that ends in .png"
        ) from error
    finally:
        pyplot.close(figure)
