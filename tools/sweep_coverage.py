"""Measure which statements of the adapters the seeds of the simulator execute.

`python tools/sweep_coverage.py` runs 200 seeds of each kind and prints, per package, the share of statements
in function bodies that ran; `--missing PART` lists the lines that did not, in files whose path contains PART.
What lies below the wire, or is not reached from a running cluster, is left out: EXCLUDED says why.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "muster"
PACKAGES = (
    "providers/aws",
    "providers/kuberay",
    "providers/rack",
    "providers/slurm",
    "providers/v1",
    "remote",
)
KINDS = {
    "plain": "tests.simulation.run:SeedRun",
    "ec2": "tests.simulation.ec2.run:Ec2Run",
    "kuberay": "tests.simulation.kuberay.run:KubeRayRun",
    "rack": "tests.simulation.rack.run:RackRun",
    "slurm": "tests.simulation.slurm.run:SlurmRun",
    "v1": "tests.simulation.v1_cloud:V1Run",
}
FLOOR = 0.75
_AT_UP = "runs in `muster up`, before there is a monitor"
_OUTSIDE = "runs in commands outside of a monitor"
_COMMANDS = "the machines of a cluster for `muster up` and `down`: the head, tags and addresses"
_OF_COMMANDS = (
    "close machines create_head create terminate_machines release_head set_tags _find machine"
    " tags internal_ip address _address is_gone answers clean_up silent_hosts runner reports _known"
)
EXCLUDED = {
    "providers/aws/account.py": _AT_UP,
    "providers/aws/bootstrap.py": _AT_UP,
    "providers/aws/defaults.py": _AT_UP,
    "providers/aws/kind.py": _AT_UP,
    "providers/aws/policy.py": "data of `muster provider policy`",
    "providers/aws/preflight.py": _AT_UP,
    "providers/aws/prices.py": "reads a price list when a cluster file is loaded",
    "providers/aws/sizes.py": "reads a list of sizes when a cluster file is loaded",
    "providers/kuberay/client.py::EventStream": "the wire: sockets",
    "providers/kuberay/client.py::KubeClient.request": "the wire: sockets",
    "providers/kuberay/client.py::KubeClient._connect": "the wire: sockets",
    "providers/kuberay/client.py::KubeClient._keep": "the wire: sockets",
    "providers/kuberay/client.py::KubeClient._send": "the wire: sockets",
    "providers/kuberay/source.py::connect": "reads the environment when a process starts",
    "providers/kuberay/source.py::connected_client": "reads the environment when a process starts",
    "providers/kuberay/source.py::usual_kubeconfig": "reads the environment when a process starts",
    "providers/kuberay/source.py::_timeout_s": "reads the environment when a process starts",
    "providers/kuberay/credentials.py": "tokens, certificates and kubeconfig files",
    "providers/kuberay/kind.py": _AT_UP,
    "providers/kuberay/manage.py": _OUTSIDE,
    "providers/kuberay/watch.py::Routine._run": "the thread that runs the steps",
    "providers/kuberay/watch.py::Routine.start": "the thread that runs the steps",
    "providers/kuberay/watch.py::Routine.close": "the thread that runs the steps",
    "providers/rack/build.py": "reads a cluster file when a process starts",
    "providers/rack/kind.py": _AT_UP,
    "providers/slurm/build.py": "reads a cluster file when a process starts",
    "providers/slurm/kind.py": _AT_UP,
    "providers/slurm/node_main.py": "runs in jobs",
    "providers/v1/kind.py": _AT_UP,
    "providers/v1/user_class.py": "imports a class of the user's when a process starts",
    "remote/connect.py": "chooses the kind of session when a process starts",
    "remote/container.py": "the wire: commands of a container engine",
    "remote/event_loop.py": "the thread of the event loop",
    "remote/install.py": _AT_UP,
    "remote/ledger_copy.py": "copies of the ledger to object storage or files",
    "remote/own_runner.py": "the wire: processes of this computer",
    "remote/process.py": "the wire: processes of this computer",
    "remote/service.py": "systemd units, written by `muster up`",
    "remote/ssh.py": "the wire: processes of OpenSSH",
    "remote/ssh_command.py": "the wire: arguments of OpenSSH",
    "remote/wheels.py": _AT_UP,
    "providers/aws/tags.py::TagWriter": _COMMANDS,
    "providers/aws/tags.py::_Write": _COMMANDS,
    "providers/aws/listing.py::MachineList.note_tags": _COMMANDS,
    "providers/aws/listing.py::MachineList._add_tags": _COMMANDS,
    "providers/aws/v1_view.py": "the provider in the shape of Ray's class, for callers outside of muster",
    "providers/aws/wire.py": "the wire: boto3",
    "providers/kuberay/provider.py::KubeRayProvider.start": "the threads that run the steps",
    "providers/kuberay/provider.py::KubeRayProvider.close": "the threads that run the steps",
    "providers/rack/connections.py": "chooses the kind of session, and keeps a file of the head's",
    "providers/rack/host_list.py": "reads a cluster file when a process starts",
    "providers/v1/calls.py::V1Machines": _COMMANDS,
    "providers/v1/calls.py::has_own_runner": _COMMANDS,
    "providers/v1/calls.py::own_runner": _COMMANDS,
    "providers/v1/adapter.py::V1Adapter.close": "the end of a process",
    "remote/installer.py::NodeInstaller.close": "the end of a process",
    "remote/lease.py": "the text of commands for a real shell; tests run them with sh",
    "remote/notices.py": "the text of commands for a real shell; tests run them with sh",
    "remote/runner.py": "the port itself",
    **{
        f"providers/{kind}::{owner}.{name}": _COMMANDS
        for kind, owner in (("aws/provider.py", "AwsProvider"), ("rack/provider.py", "RackProvider"))
        for name in _OF_COMMANDS.split()
    },
}


@dataclass
class Measured:
    """The statements of one file, by line, and those that ran."""

    lines: list[int] = field(default_factory=list)
    ran: bytearray = field(default_factory=bytearray)


FILES: dict[str, Measured] = {}


class _Marker(ast.NodeTransformer):
    """Puts a mark before every statement of a function that is not left out."""

    def __init__(self, name: str, measured: Measured) -> None:
        self._name, self._measured = name, measured
        self._path: list[str] = []
        self._depth = 0

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._inside(node, 0)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._inside(node, 1)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._inside(node, 1)

    def _inside(self, node: Any, depth: int) -> ast.AST:  # noqa: ANN401 - any kind of definition
        self._path.append(node.name)
        if f"{self._name}::{'.'.join(self._path)}" not in EXCLUDED:
            self._depth += depth
            self.generic_visit(node)
            if depth:
                first = 1 if ast.get_docstring(node) is not None else 0
                node.body = [*node.body[:first], *self._marked(node.body[first:])]
            self._depth -= depth
        self._path.pop()
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        is_definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module)
        if self._depth and not is_definition:
            for name in ("body", "orelse", "finalbody"):
                found = getattr(node, name, None)
                if isinstance(found, list):
                    setattr(node, name, list(self._marked(found)))
        return node

    def _marked(self, body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
        for statement in body:
            number = len(self._measured.lines)
            self._measured.lines.append(statement.lineno)
            mark = ast.parse(f"__ran__[{number}] = 1").body[0]
            for part in ast.walk(mark):
                ast.copy_location(part, statement)
            yield mark
            yield statement


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module with marks."""

    def source_to_code(self, data: Any, path: Any, **_: Any) -> CodeType:  # type: ignore[override]  # noqa: ANN401
        tree = ast.parse(data, path)
        name = str(Path(path).relative_to(SOURCE))
        measured = FILES[name] = Measured()
        if name not in EXCLUDED:
            _Marker(name, measured).visit(tree)
        measured.ran = bytearray(len(measured.lines))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)

    def exec_module(self, module: ModuleType) -> None:
        code = self.get_code(module.__name__)
        module.__dict__["__ran__"] = FILES[str(Path(self.path).relative_to(SOURCE))].ran
        exec(code, module.__dict__)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that are measured."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:  # noqa: ANN401
        place = SOURCE.parent / Path(*fullname.split("."))
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if not file.is_relative_to(SOURCE) or not str(file.relative_to(SOURCE)).startswith(PACKAGES):
            return None
        folders = [str(place)] if place.is_dir() else None
        return importlib.util.spec_from_file_location(
            fullname, file, loader=_Loader(fullname, str(file)), submodule_search_locations=folders
        )


def _start() -> None:
    sys.path.insert(0, str(ROOT))
    sys.meta_path.insert(0, _Finder())


def _run(kind: str, seeds: Sequence[int]) -> tuple[dict[str, Measured], list[str]]:
    import logging

    logging.disable(logging.CRITICAL)
    module, name = KINDS[kind].split(":")
    run = getattr(importlib.import_module(module), name)
    reports = [run(seed).to_end() for seed in seeds]
    return FILES, [f"{kind} seed {one.seed}: {one.violations[0]}" for one in reports if one.violations]


def measure(kinds: Sequence[str], seeds: int, jobs: int) -> tuple[dict[str, Measured], list[str]]:
    """Run the seeds of every kind; return the files with what ran in any of them, and the violations."""
    parts = [(kind, range(start, seeds, jobs)) for kind in kinds for start in range(jobs)]
    total: dict[str, Measured] = {}
    context = multiprocessing.get_context("spawn")
    problems: list[str] = []
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_start) as pool:
        for files, violations in pool.map(_run, *zip(*parts, strict=True)):
            problems += violations
            for name, measured in files.items():
                known = total.setdefault(name, measured)
                known.ran = bytearray(a | b for a, b in zip(known.ran, measured.ran, strict=True))
    for name in _unseen(total):
        tree = ast.parse((SOURCE / name).read_bytes())
        measured = total[name] = Measured()
        _Marker(name, measured).visit(tree)
        measured.ran = bytearray(len(measured.lines))
    return total, problems


def _unseen(total: dict[str, Measured]) -> Iterator[str]:
    """Yield the files that no seed has even imported."""
    for package in PACKAGES:
        for path in sorted((SOURCE / package).glob("*.py")):
            name = str(path.relative_to(SOURCE))
            if name not in total and name not in EXCLUDED:
                yield name


def _share(files: Sequence[Measured]) -> tuple[int, int, float]:
    ran, all_lines = sum(sum(one.ran) for one in files), sum(len(one.lines) for one in files)
    return ran, all_lines, ran / all_lines if all_lines else 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="seeds of each kind")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--missing", metavar="PART", help="list the lines that did not run in these files")
    parser.add_argument("--excluded", action="store_true", help="list what is left out, and why")
    given = parser.parse_args()
    if given.excluded:
        print("\n".join(f"{name}: {why}" for name, why in EXCLUDED.items()))  # noqa: T201
        return
    files, problems = measure(given.kinds, given.seeds, given.jobs)
    shares = []
    for package in PACKAGES:
        inside = {name: one for name, one in files.items() if str(Path(name).parent) == package}
        ran, lines, share = _share(list(inside.values()))
        shares.append(share)
        print(f"{package:20} {ran:5} of {lines:5} statements, {share:6.1%}")  # noqa: T201
        for name, one in sorted(inside.items()):
            if one.lines:
                print("  {:40} {:5} of {:5}, {:6.1%}".format(Path(name).name, *_share([one])))  # noqa: T201
            if given.missing and given.missing in name:
                missing = [line for line, ran in zip(one.lines, one.ran, strict=True) if not ran]
                print(f"    not run: {' '.join(map(str, missing))}")  # noqa: T201
    print("all                  {:5} of {:5} statements, {:6.1%}".format(*_share(list(files.values()))))  # noqa: T201
    print("\n".join(problems))  # noqa: T201
    if min(shares) < FLOOR or problems:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
