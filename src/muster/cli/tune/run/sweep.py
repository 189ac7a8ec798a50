"""Read a sweep file of Weights & Biases as what `muster tune run` needs: command, space, goal, search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from muster.base.text import did_you_mean
from muster.cli.tune.run.space import made_domain, number, read_yaml
from muster.errors import ConfigError
from muster.tune.search.conditions import KeyPath, SpaceEntry, dotted
from muster.tune.search.space import grid_search

COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")  # of a file without one
READ = ("program", "command", "method", "metric", "parameters", "early_terminate", "run_cap")
SILENT, IGNORED = ("description", "$schema"), ("project", "entity", "name", "controller")
LAUNCH = ("job", "image_uri", "imageuri", "launch", "scheduler", "resource", "resource_args", "queue")
METHODS = {"grid": "random", "random": "random", "bayes": "auto"}
DOMAINS = {  # of distributions with bounds
    "int_uniform": "randint",
    "uniform": "uniform",
    "log_uniform": "loguniform",
    "log_uniform_values": "loguniform",
}
NORMAL = ("normal", "q_normal")
STEPPED = ("q_uniform", "q_log_uniform", "q_log_uniform_values")
REFUSED = {  # by a part of a distribution's name
    "beta": "use uniform with min and max",
    "log_normal": "use log_uniform_values with min and max",
    "inv_log": "use uniform, or search 1 - value with log_uniform_values",
    "probabilities": "remove them: options have equal chances",
}
PARAMETER_KEYS = ("value", "values", "distribution", "min", "max", "mu", "sigma", "q", "parameters", "desc")
FOREVER = 10**9  # iterations: sweeps do not end trials at a last rung


class Sweep(NamedTuple):
    """Holds what a sweep file asks for."""

    command: tuple[str, ...] | None
    entries: list[SpaceEntry]
    goals: Mapping[str, str]  # the mode of the metric
    samples: int | None
    search: str
    scheduler: tuple[str, dict[str, Any]] | None
    remarks: list[str]


def read_sweep(file: Path) -> Sweep:
    """Read a file. Raises ConfigError for one that cannot be read, and for settings that muster lacks."""
    where, content = f"--sweep {file}", read_yaml(file, "--sweep", dict)
    remarks = [f"{where}: ignored {key}" for key in content if key in IGNORED]
    for key in content:
        if key in LAUNCH:
            fix = "give a program or command instead"
            raise ConfigError(f"{where}: {key} belongs to W&B Launch", fix=fix)
        if key not in (*READ, *SILENT, *IGNORED):
            raise ConfigError(f"{where}: has the unknown key {key!r}", fix=did_you_mean(str(key), READ))
    method, parameters = str(content.get("method", "random")), content.get("parameters")
    if method not in METHODS:
        raise ConfigError(f"{where}: method {method} is not supported", fix=f"use {', '.join(METHODS)}")
    if not isinstance(parameters, dict) or not parameters:
        raise ConfigError(f"{where}: parameters must be a mapping", fix="for example {lr: {value: 0.1}}")
    entries = list(_entries(parameters, (), where, method, remarks))
    cap, goals = content.get("run_cap"), _goals(content.get("metric"), where, remarks)
    if cap is not None and method == "grid":
        remarks.append(f"{where}: ignored run_cap; a grid runs whole")
        cap = None
    if cap is not None and (isinstance(cap, bool) or not isinstance(cap, int) or cap < 1):
        raise ConfigError(f"{where}: run_cap must be a whole number above 0, not {cap!r}")
    scheduler = _scheduler(content.get("early_terminate"), f"{where}: early_terminate", remarks)
    search, command = METHODS[method], _command(content, where)
    return Sweep(command, entries, goals, cap, search, scheduler, remarks)


def _command(content: Mapping[str, Any], where: str) -> tuple[str, ...] | None:
    """Return the words with the program in place; `tune.command` expands the other macros."""
    program, words = content.get("program"), content.get("command", COMMAND)
    if not isinstance(words, list | tuple) or not all(isinstance(word, str | int | float) for word in words):
        raise ConfigError(f"{where}: command must be a list of words")
    if "${program}" in words and program is None:
        if "command" in content:
            raise ConfigError(f"{where}: the command has ${{program}}, and program is not set")
        return None  # the command line may have one
    return tuple(str(program) if word == "${program}" else str(word) for word in words)


def _goals(metric: Any, where: str, remarks: list[str]) -> dict[str, str]:  # noqa: ANN401
    if metric is None:
        return {}
    if not isinstance(metric, dict) or not isinstance(metric.get("name"), str):
        raise ConfigError(f"{where}: metric needs a name", fix="for example {name: loss, goal: minimize}")
    goal = metric.get("goal", "minimize")
    if goal not in ("minimize", "maximize"):
        raise ConfigError(f"{where}: metric.goal must be minimize or maximize, not {goal!r}")
    if "target" in metric:
        stop = f"--stop {metric['name']}={metric['target']} stops a trial there"
        remarks.append(f"{where}: ignored metric.target; {stop}")
    return {metric["name"]: goal[:3]}


def _scheduler(given: Any, where: str, remarks: list[str]) -> tuple[str, dict[str, Any]] | None:  # noqa: ANN401
    """Return ASHA with the same rungs; trials continue after the last one."""
    if given is None:
        return None
    if not isinstance(given, dict) or given.get("type") != "hyperband":
        raise ConfigError(f"{where}: {given!r} is not supported", fix="write {type: hyperband, min_iter: 3}")
    if "min_iter" not in given and "max_iter" not in given:
        raise ConfigError(f"{where}: needs min_iter or max_iter")
    if given.get("strict"):
        remarks.append(f"{where}: ignored strict")
    eta, first, last, count = (
        number(given.get(key, default), f"{where}: {key}")
        for key, default in {"eta": 3, "min_iter": 0, "max_iter": FOREVER, "s": 1}.items()
    )
    first, last = (first, FOREVER) if first else (max(1, last // eta**count), last)
    return "asha", {"grace_period": first, "max_t": last, "reduction_factor": eta, "stop_last_trials": False}


def _entries(
    parameters: Mapping[Any, Any], parents: KeyPath, file: str, method: str, remarks: list[str]
) -> Iterator[SpaceEntry]:
    """Yield parameters in the order of W&B's arguments: by name."""
    for name, given in sorted(parameters.items(), key=lambda item: str(item[0])):
        key = (*parents, str(name))
        where = f"{file}: {dotted(key)}"
        if not isinstance(given, dict):
            raise ConfigError(f"{where}: must be a mapping", fix=f"write {{value: {given}}}")
        if isinstance(given.get("parameters"), dict):
            yield from _entries(given["parameters"], key, file, method, remarks)
        else:
            domain = _domain(given, where, remarks)
            yield SpaceEntry(key, _grid(domain, where) if method == "grid" else domain, None, where)


def _grid(domain: Any, where: str) -> Any:  # noqa: ANN401
    """Return the values of a parameter as a grid; whole numbers and steps have some too."""
    from muster.tune.search.dimensions import dimension_of
    from muster.tune.search.sample import Categorical, Domain

    if not isinstance(domain, Domain):
        return domain
    if isinstance(domain, Categorical):
        return grid_search(domain.categories)
    numbers = dimension_of("", domain)
    step = numbers and (numbers.step or (1.0 if numbers.kind == "int" else None))
    if not numbers or not step or not math.isfinite(numbers.high):
        raise ConfigError(f"{where}: method grid needs values", fix="give values: [...], or method: random")
    count = round((numbers.high - numbers.low) / step) + 1
    return grid_search([numbers.decoded(numbers.low + at * step) for at in range(count)])


def _domain(given: Mapping[str, Any], where: str, remarks: list[str]) -> Any:  # noqa: ANN401
    """Return the domain of one parameter, or its constant."""
    kind = "probabilities" if "probabilities" in given else str(given.get("distribution") or _usual(given))
    for part, fix in REFUSED.items():
        if part in kind:
            raise ConfigError(f"{where}: muster does not support {kind}", fix=fix)
    for unknown in [key for key in given if key not in PARAMETER_KEYS]:
        near = did_you_mean(str(unknown), PARAMETER_KEYS)
        raise ConfigError(f"{where}: has the unknown key {unknown!r}", fix=near)
    if kind == "constant":
        return given.get("value")
    if kind == "categorical":
        if not isinstance(given.get("values"), list) or not given["values"]:
            raise ConfigError(f"{where}: values must be a list with at least one value")
        return made_domain("choice", [given["values"]], where)
    if kind in NORMAL:
        defaults = {"mu": 0, "sigma": 1, "q": 1} if kind == "q_normal" else {"mu": 0, "sigma": 1}
        values = [number(given.get(key, default), f"{where}: {key}") for key, default in defaults.items()]
        return made_domain("qrandn" if kind == "q_normal" else "randn", values, where)
    if kind not in (*DOMAINS, *STEPPED):
        near = did_you_mean(kind, (*DOMAINS, *STEPPED, *NORMAL)) or "see the W&B documentation"
        raise ConfigError(f"{where}: {kind} is not a distribution", fix=near)
    low, high = _bounds(given, kind.endswith("log_uniform"), where, remarks)
    if kind in STEPPED:
        return _stepped(DOMAINS[kind[2:]], (low, high), number(given.get("q", 1), where), where, remarks)
    return made_domain(DOMAINS[kind], [low, high + (kind == "int_uniform")], where)


def _usual(given: Mapping[str, Any]) -> str:
    """Return the distribution of a parameter that names none."""
    if "value" in given or "values" in given:
        return "constant" if "value" in given else "categorical"
    return "int_uniform" if all(isinstance(given.get(each), int) for each in ("min", "max")) else "uniform"


def _bounds(
    given: Mapping[str, Any], are_exponents: bool, where: str, remarks: list[str]
) -> tuple[float, float]:
    """Return min and max; files often give a log_uniform exponents of 10, or values."""
    for key in ("min", "max"):
        if key not in given:
            raise ConfigError(f"{where}: lacks {key}", fix="give value, values, or min and max")
    low, high = (number(given[key], f"{where}: {key}") for key in ("min", "max"))
    if low > high:
        raise ConfigError(f"{where}: min is above max", fix="swap them")
    if not are_exponents:
        return low, high
    if (low < 0 and isinstance(low, int) and isinstance(high, int)) or 0 <= low < high <= 1:
        values = f"values from {math.exp(low):.3g} to {math.exp(high):.3g}"
        fix = "log_uniform_values has the values themselves"
        remarks.append(f"{where}: log_uniform has exponents of e: {values}; {fix}")
    return math.exp(low), math.exp(high)


def _stepped(name: str, bounds: tuple[float, float], q: float, where: str, remarks: list[str]) -> Any:  # noqa: ANN401
    """Return a domain on multiples of q, with wider bounds where needed; a whole q makes whole numbers."""
    if not q > 0:
        raise ConfigError(f"{where}: q must be above 0")
    least = 1 if name == "loguniform" else -math.inf
    first, last = math.floor(bounds[0] / q + 1e-9), math.ceil(bounds[1] / q - 1e-9)
    low, high = max(least, first) * q, max(least, last) * q
    if abs(low - bounds[0]) + abs(high - bounds[1]) > 1e-9 * q:
        remarks.append(f"{where}: widened to {low:g}..{high:g}, multiples of q = {q:g}")
    if isinstance(q, int):
        name = "lograndint" if name == "loguniform" else "randint"
        if q == 1:
            return made_domain(name, [low, high + 1], where)
    return made_domain(f"q{name}", [low, high, q], where)
