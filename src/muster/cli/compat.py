"""Implement `muster compat`: what a Ray Tune script uses that muster lacks, and the change of its imports.

What muster has is found by importing its modules: there is no list to keep. Scripts are read, never run.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import io
import itertools
import pkgutil
import re
import shutil
import tokenize
import warnings
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import click

from muster.cli.compat_library import show_library
from muster.cli.compat_older import call_edits, chain_edits, older_advice, todays_module
from muster.cli.console import emit
from muster.errors import MusterError
from muster.host.atomic_write import atomic_write
from muster.tune.analysis.ray_results import convert
from muster.tune.older import RUN_ARGUMENTS

ROOTS = ("muster.tune", "muster.air", "muster.train")  # everything else of Ray stays as it is
REFUSED = {  # parameters that muster has in order to refuse them, and what to use instead
    "chdir_to_trial_dir": "set the environment variable RAY_CHDIR_TO_TRIAL_DIR=0",
    "local_dir": "use storage_path",
}
RAY_CORE = {
    "ray": "the script imports Ray and does not use it: take the import out",
    "ray.cloudpickle": "import cloudpickle instead, which muster installs",
    "ray.init": "trials run on that Ray: take it out to run them on this machine, without Ray",
    "ray.put": "pass large objects with tune.with_parameters, which needs no Ray",
}
SKIPPED = frozenset({"__pycache__", "build", "dist", "node_modules", "site-packages", "venv"})
_DIRECTORY = click.Path(path_type=Path, file_okay=False)


class CompatFinding(NamedTuple):
    """One name that a script uses and muster lacks; `is_core`: Ray itself has it."""

    line: int
    name: str
    advice: str
    is_core: bool = False


class ScriptReport(NamedTuple):
    """The outcome for one script; `after` is its text with the imports changed."""

    path: Path
    before: str
    after: str
    findings: tuple[CompatFinding, ...]
    encoding: str = "utf-8"


class _Edit(NamedTuple):
    start: int
    end: int
    text: str


class _Lookup(NamedTuple):
    """The object behind one of Ray's names, the module that holds it, or why there is none."""

    value: object
    module: str
    problem: str = ""


def rewritten(source: str) -> str:
    """Return the text of a script with its imports of Ray Tune changed to ours."""
    return _Script(source).after()


@cache
def _look_up(dotted: str) -> _Lookup:
    """Return what muster has for a dotted name; attributes of functions are not followed."""
    with warnings.catch_warnings():  # names of older versions
        warnings.simplefilter("ignore", DeprecationWarning)
        return _followed(dotted)


def _followed(dotted: str) -> _Lookup:
    parts = _as_ours(dotted).split(".")
    value: object = importlib.import_module(parts[0])
    module = parts[0]
    for part in parts[1:]:
        if not isinstance(value, ModuleType | type):
            return _Lookup(None, module)
        try:
            value = _member(value, part) if isinstance(value, ModuleType) else getattr(value, part)
        except ImportError as problem:  # a name that says itself why it is left out
            return _Lookup(None, module, str(problem))
        except AttributeError as problem:
            is_module = isinstance(value, ModuleType)
            return _Lookup(None, module, _advice(dotted, module, part) if is_module else str(problem))
        module = value.__name__ if isinstance(value, ModuleType) else module
    return _Lookup(value, module)


def _member(module: ModuleType, name: str) -> object:
    """Raise AttributeError when there is no such name, ImportError when its module refuses the import."""
    try:
        return getattr(module, name)
    except AttributeError:
        path = f"{module.__name__}.{name}"
        try:
            return importlib.import_module(path)
        except ModuleNotFoundError as missing:
            if missing.name != path and not path.startswith(f"{missing.name}."):
                raise
            raise AttributeError(path) from missing


def _advice(dotted: str, module: str, name: str) -> str:
    last = dotted.rpartition(".")[2]
    homes = [home for home in _public_modules() if last in _public_names(home)]
    if homes:
        return f"import {last} from {min(homes, key=lambda home: (home.count('.'), home))}"
    if dotted.startswith(("ray.train", "ray.air.session")) or name == "ScalingConfig":
        return "it belongs to Ray Train: it stays imported from Ray, and works in trials on the Ray engine"
    close = difflib.get_close_matches(name, _public_names(module), n=1, cutoff=0.75)
    return f"did you mean {module}.{close[0]}?" if close else "remove it; see docs/from-ray-tune.md"


@cache
def _public_modules() -> tuple[str, ...]:
    """Return the modules that scripts import from; ones that need a library that is missing are left out."""
    import muster

    found = (
        entry.name for entry in pkgutil.walk_packages(muster.__path__, "muster.", onerror=lambda _: None)
    )
    return tuple(name for name in found if _is_tuning(name) and "._" not in name and _public_names(name))


@cache
def _public_names(module: str) -> frozenset[str]:
    """Return the names a module exports, or the classes and functions that it defines."""
    try:
        loaded = importlib.import_module(module)
    except ImportError:
        return frozenset()
    listed = getattr(loaded, "__all__", None)
    if listed is not None:
        return frozenset(listed)
    return frozenset(
        name
        for name, value in vars(loaded).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module
    )


def _as_ours(dotted: str) -> str:
    return re.sub(r"^ray\b", "muster", dotted)


def _is_tuning(dotted: str) -> bool:
    return f"{_as_ours(dotted)}.".startswith(tuple(f"{root}." for root in ROOTS))


def _is_below_train(node: ast.Import | ast.ImportFrom) -> bool:
    names = [str(node.module)] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    return any(name.startswith("ray.train.") for name in names)


class _Script:
    """One source: its bindings of Ray's names, what they lack here, and edits of the text."""

    def __init__(self, source: str) -> None:
        self._data = source.encode()
        lines = self._data.splitlines(keepends=True)
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))
        self._tree = ast.parse(source)
        self._bound: dict[str, str] = {}  # a name of the script -> Ray's dotted name
        self._edits: list[_Edit] = []
        self.findings: list[CompatFinding] = []
        imports = [node for node in ast.walk(self._tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
        self._has_trainers = "ScalingConfig" in source or any(map(_is_below_train, imports))
        for node in imports:
            self._bind(node)
        added, ray_is_used = self._follow_chains()
        added -= {"muster" + name.removeprefix("ray") for name in self._plainly_imported()}
        for node in imports:
            if isinstance(node, ast.ImportFrom):
                self._change_from(node)
            else:
                self._change_import(node, added, ray_is_used)
        self._check_keywords()
        for node in imports:
            if not ray_is_used and "ray" in {alias.name for alias in node.names}:
                self._note_core("ray", node)

    def after(self) -> str:
        """Return the text with all edits made."""
        data = self._data
        for edit in sorted(self._edits, reverse=True):
            data = data[: edit.start] + edit.text.encode() + data[edit.end :]
        return data.decode()

    def _bind(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            dotted = f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
            root = dotted.partition(".")[0]
            if root not in ("ray", "muster") or getattr(node, "level", None):
                continue
            if dotted.startswith("ray.") and not _is_tuning(dotted):
                self._note_core(dotted, node)
            elif _is_tuning(dotted) and self._lack(dotted, node):
                continue
            if isinstance(node, ast.Import) and alias.asname is None:
                self._bound[root] = root
            elif isinstance(node, ast.Import) or _is_tuning(dotted):
                self._bound[alias.asname or alias.name] = dotted

    def _note_core(self, dotted: str, node: ast.stmt | ast.expr) -> None:
        """Note the first use of each name of Ray itself."""
        name = ".".join(dotted.split(".")[:2])
        if name not in (finding.name for finding in self.findings):
            advice = RAY_CORE.get(name, "it belongs to Ray itself, and stays imported from there")
            self.findings.append(CompatFinding(node.lineno, name, advice, is_core=True))

    def _lack(self, dotted: str, node: ast.stmt | ast.expr) -> bool:
        """Note a name that muster lacks; `*` stands for its module."""
        problem = _look_up(dotted.removesuffix(".*")).problem or older_advice(dotted)
        if problem:
            self.findings.append(CompatFinding(node.lineno, dotted, problem))
        return bool(problem)

    def _follow_chains(self) -> tuple[set[str], bool]:
        """Check `tune.search.X` and changes `ray.tune.X`.

        Returns the modules that such chains need, and whether Ray itself is still used.
        """
        chains = [node for node in ast.walk(self._tree) if isinstance(node, ast.Attribute)]
        for node in chains:
            root, dotted = self._dotted(node)
            edits = () if root is None else chain_edits(node, dotted, self._range(node)[1])
            self._edits += itertools.starmap(_Edit, edits)
        inner = {id(node.value) for node in chains}
        needed: set[str] = set()
        ray_is_used = False
        for node in (each for each in chains if id(each) not in inner):
            root, dotted = self._dotted(node)
            if root is None:
                continue
            if _is_tuning(dotted):
                self._lack(dotted, node)
            if not self._is_ours(dotted):
                ray_is_used |= self._bound[root.id] == "ray"
                if self._bound[root.id].startswith("ray") and not _is_tuning(dotted):
                    self._note_core(dotted, node)
            elif self._bound[root.id] == "ray":
                needed.add(_look_up(dotted).module)
                self._edits.append(_Edit(*self._range(root), "muster"))
        return needed, ray_is_used

    def _dotted(self, node: ast.expr) -> tuple[ast.Name | None, str]:
        """Return the name a chain of attributes starts with, and Ray's name for the whole chain."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._bound:
            return None, ""
        return node, ".".join([self._bound[node.id], *reversed(parts)])

    def _change_from(self, node: ast.ImportFrom) -> None:
        is_rays = not node.level and str(node.module).partition(".")[0] == "ray"
        moves = [is_rays and self._moves(f"{node.module}.{alias.name}") for alias in node.names]
        if not any(moves):
            return
        if all(moves):  # only one word changes: comments and line breaks inside stay
            start, end = self._range(node)
            text = self._data[start:end].decode()
            home = todays_module(_as_ours(str(node.module)))
            self._edits.append(_Edit(start, end, re.sub(r"^(from\s+)[\w.]+", rf"\g<1>{home}", text)))
            return
        ours = ", ".join(ast.unparse(a) for a, is_ours in zip(node.names, moves, strict=True) if is_ours)
        theirs = ", ".join(
            ast.unparse(a) for a, is_ours in zip(node.names, moves, strict=True) if not is_ours
        )
        module = todays_module("muster" + str(node.module).removeprefix("ray"))
        self._replace(node, [f"from {module} import {ours}", f"from {node.module} import {theirs}"])

    def _change_import(self, node: ast.Import, added: set[str], ray_is_used: bool) -> None:
        """Change `import ray.tune`; what chains need besides is added to the first import of Ray."""
        lines, binds_ray = [], False
        for alias in node.names:
            if alias.name.startswith("muster") or not self._moves(alias.name):
                lines.append(f"import {ast.unparse(alias)}")
                binds_ray |= alias.name == "ray" or (alias.name.startswith("ray.") and alias.asname is None)
                continue
            module = "muster" + alias.name.removeprefix("ray")
            lines.append(f"import {module} as {alias.asname}" if alias.asname else f"import {module}")
            binds_ray |= alias.asname is None
            if alias.asname is None and ray_is_used and "ray" not in self._plainly_imported():
                lines.append("import ray")
        if binds_ray:
            lines += [f"import {module}" for module in sorted(added)]
            added.clear()
        lines = list(dict.fromkeys(lines))
        if lines != [f"import {ast.unparse(alias)}" for alias in node.names]:
            self._replace(node, lines)

    def _plainly_imported(self) -> set[str]:
        nodes = (node for node in ast.walk(self._tree) if isinstance(node, ast.Import))
        return {alias.name for node in nodes for alias in node.names if alias.asname is None}

    def _is_ours(self, dotted: str) -> bool:
        """Trainers take configs of Ray Train, and their workers report to it: then all of it stays."""
        theirs = ("ray.train", "ray.air.session")
        return _is_tuning(dotted) and not (self._has_trainers and dotted.startswith(theirs))

    def _moves(self, dotted: str) -> bool:
        return self._is_ours(dotted) and not _look_up(dotted.removesuffix(".*")).problem

    def _check_keywords(self) -> None:
        """Note arguments by name that our function or class does not take."""
        for node in ast.walk(self._tree):
            if not isinstance(node, ast.Call):
                continue
            root, dotted = self._dotted(node.func)
            if root is None or not self._moves(dotted):
                continue
            edits = call_edits(node, dotted.rpartition(".")[2], self._range, self._keyword_start)
            self._edits += itertools.starmap(_Edit, edits)
            for keyword in node.keywords:
                advice = keyword.arg and _keyword_advice(dotted, keyword.arg)
                is_none = isinstance(keyword.value, ast.Constant) and keyword.value.value is None
                if advice and not (is_none and keyword.arg in REFUSED):
                    name = f"{dotted}({keyword.arg}=...)"
                    self.findings.append(CompatFinding(keyword.value.lineno, name, advice))

    def _range(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        return (self._starts[node.lineno - 1] + node.col_offset, self._starts[end_line - 1] + end_column)

    def _keyword_start(self, keyword: ast.keyword) -> int:
        return self._starts[keyword.lineno - 1] + keyword.col_offset

    def _replace(self, node: ast.stmt, statements: list[str]) -> None:
        """Put statements in the place of one: below each other, or on its line when it shares it."""
        start, end = self._range(node)
        before = self._data[self._starts[node.lineno - 1] : start].decode()
        behind = self._data[end : self._starts[node.end_lineno or node.lineno]].decode().strip()
        is_alone = not before.strip() and not behind.startswith(";")
        self._edits.append(_Edit(start, end, (f"\n{before}" if is_alone else "; ").join(statements)))


def _keyword_advice(dotted: str, keyword: str) -> str:
    """Return what to do about an argument by name that muster refuses; "" for one that it takes."""
    name = dotted.rpartition(".")[2]
    if keyword in REFUSED:
        return f"{name} takes no {keyword!r} any more: {REFUSED[keyword]}"
    if name == "report" and keyword not in ("checkpoint", "metrics"):
        return f"pass a dict: report({{{keyword!r}: ...}})"
    if name == "run" and keyword in RUN_ARGUMENTS:
        return f"run takes no {keyword!r} any more: {RUN_ARGUMENTS[keyword]}"
    if _takes(_look_up(dotted).value, keyword):
        return ""
    return f"{name} takes no {keyword!r} here: take it out"


def _takes(function: object, keyword: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return True
    return keyword in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def examine(path: Path) -> ScriptReport:
    """Read one script; what is not Python becomes a finding. Raises MusterError for an unreadable file."""
    try:
        data = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        source = data.decode(encoding)
        script = _Script(source)
    except OSError as problem:
        raise MusterError(f"{path}: cannot be read: {problem.strerror}", fix="check the path") from problem
    except (SyntaxError, ValueError) as problem:
        line = getattr(problem, "lineno", None) or 1
        finding = CompatFinding(line, "(the file)", f"it is not Python that can be read: {problem}")
        return ScriptReport(path, "", "", (finding,))
    return ScriptReport(path, source, script.after(), tuple(sorted(set(script.findings))), encoding)


def scripts_in(path: Path) -> Iterator[Path]:
    """Yield the file, or the Python files below a folder; hidden folders and ones of tools are left out."""
    if not path.is_dir():
        yield path
        return
    for found in sorted(path.rglob("*.py")):
        inside = found.relative_to(path).parts[:-1]
        if not any(part in SKIPPED or part.startswith(".") for part in inside):
            yield found


def write(report: ScriptReport) -> Path:
    """Keep the script as `NAME.bak` (`.bak2`, ...: no backup is replaced) and writes the new text."""
    names = (f"{report.path.name}.bak{'' if number == 1 else number}" for number in itertools.count(1))
    backup = next(each for each in map(report.path.with_name, names) if not each.exists())
    shutil.copy2(report.path, backup)
    mode = report.path.stat().st_mode & 0o777
    atomic_write(report.path, report.after.encode(report.encoding), mode=mode)
    return backup


_EPILOG = """\b
Exit codes: 0 muster has everything the scripts use; 1 something is missing, or Ray itself
is used and not installed; 2 bad input.

\b
Examples:
  muster compat train.py
  muster compat experiments/ --write
  muster compat --library lenskit
  muster compat --experiment ~/ray_results/train_2026-11-16_02-10-00
"""


@click.command(epilog=_EPILOG, context_settings={"max_content_width": 88})
@click.argument("paths", nargs=-1, metavar="SCRIPT_OR_FOLDER...", type=click.Path(path_type=Path))
@click.option(
    "--write", "is_writing", is_flag=True, help="Change the imports, show the diff and keep NAME.bak."
)
@click.option("--experiment", type=_DIRECTORY, help="Convert a Ray Tune experiment to a muster experiment.")
@click.option("--library", help="List what an installed library uses of Ray and muster lacks.")
@click.option("-o", "--output", type=_DIRECTORY, help="Directory to write. Default: DIRECTORY-muster.")
@click.pass_context
def compat(
    ctx: click.Context,
    /,
    paths: tuple[Path, ...],
    is_writing: bool,
    library: str | None,
    **given: Path | None,
) -> None:
    """Port Ray Tune scripts to muster: change their imports and list what muster lacks.

    Imports of ray.tune, ray.air and ray.train become imports of muster; the rest of Ray
    (ray.init, ray.remote, ...) stays. compat lists each name that muster lacks with its line
    and a remedy, and keeps its import. It reads scripts and does not run them.

    --experiment copies the results and checkpoints of a Ray Tune experiment, so that
    muster tune, ExperimentAnalysis and searchers can read them. It opens no pickles.

    --library NAME lists the names of Ray that an installed library uses and that it would
    not find under `muster as-ray`.
    """
    source = given["experiment"]
    if not paths and source is None and library is None:
        raise click.UsageError("name a script, a folder, --experiment DIRECTORY or --library NAME")
    if library is not None:
        ctx.exit(show_library(library))
    if source is not None:
        target = given["output"] or source.with_name(f"{source.resolve().name}-muster")
        emit(f"{target}: {convert(source, target)} trials of {source}".encode())
    if not paths:
        return
    reports = [examine(script) for path in paths for script in scripts_in(path)]
    for report in reports:
        for line, name, advice, _ in report.findings:
            emit(f"{report.path}:{line}: {name}: {advice}".encode())
    changed = [report for report in reports if report.before != report.after]
    for report in changed if is_writing else ():
        name = str(report.path)
        lines = report.before.splitlines(keepends=True), report.after.splitlines(keepends=True)
        emit("".join(difflib.unified_diff(*lines, fromfile=name, tofile=name)).rstrip("\n").encode())
        emit(f"{report.path}: changed; the script as it was: {write(report)}".encode())
    emit(_summary(reports, changed, is_writing).encode())
    has_ray = find_spec("ray") is not None
    if any(not (finding.is_core and has_ray) for report in reports for finding in report.findings):
        ctx.exit(1)


def _summary(reports: list[ScriptReport], changed: list[ScriptReport], is_writing: bool) -> str:
    findings = [finding for report in reports for finding in report.findings]
    core = sum(finding.is_core for finding in findings)
    hint = f", {core} from Ray itself" if core else ""
    hint += "" if is_writing or not changed else "; --write changes them"
    verb = "changed" if is_writing else "with imports to change"
    return f"{len(reports)} read, {len(changed)} {verb}, {len(findings) - core} missing{hint}"
