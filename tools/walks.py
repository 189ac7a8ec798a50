"""Count the files that a reader walks through to follow one operation.

`python tools/walks.py` prints, for each operation, how many files under src/muster ran code on the control
thread: functions, and class bodies of modules that the operation imports. Each operation has a new process.
`--files` lists them.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = f"{ROOT / 'src' / 'muster'}{os.sep}"
LIMITS = {"one report": 17, "whole fit": 95, "muster plan": 38, "one tick": 38}


class Walk:
    """Collects the files whose functions the current thread calls."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    @contextmanager
    def recording(self) -> Iterator[None]:
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        # The body of a module runs once, at import: a reader of the operation does not read it.
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(SOURCE):
            self.files.add(code.co_filename.removeprefix(SOURCE))


def one_report() -> set[str]:
    """A step of the controller that handles one report of a running trial, and nothing else."""
    from muster.trials.controller import TrialController
    from muster.trials.events import TrialReported
    from muster.trials.experiment import ExperimentState

    walks: list[set[str]] = []
    events: list[object] = []
    step, handle = TrialController.step, ExperimentState.handle

    def watched_handle(state: ExperimentState, event: Any) -> Any:  # noqa: ANN401 - as the original
        events.append(event)
        return handle(state, event)

    def watched_step(controller: TrialController, *args: Any, **kwargs: Any) -> bool:  # noqa: ANN401
        events.clear()
        walk = Walk()
        with walk.recording():
            continues = step(controller, *args, **kwargs)
        if len(events) == 1 and isinstance(events[0], TrialReported):
            walks.append(walk.files)
        return continues

    with replaced(TrialController, "step", watched_step), replaced(ExperimentState, "handle", watched_handle):
        _fit(reports=20)
    return sorted(walks, key=len)[len(walks) // 2]


def whole_fit() -> set[str]:
    """`Tuner(f).fit()` of one trial that reports once."""
    walk = Walk()
    with walk.recording():
        _fit(reports=1)
    return walk.files


def plan() -> set[str]:
    """`muster plan` of the example in the README."""
    from muster.cli.main import cli

    walk = Walk()
    folder = ROOT / "examples" / "plan"
    words = ["plan", str(folder / "cluster.yaml"), "--demand", str(folder / "demand.yaml")]
    with walk.recording():
        cli(words, standalone_mode=False)
    return walk.files


def one_tick() -> set[str]:
    """A tick of the cluster controller that carries out actions, without the simulator around it."""
    sys.path.insert(0, str(ROOT))
    from tests.simulation.run import simulate

    from muster.cluster.controller import ClusterController

    walks: list[set[str]] = []
    tick = ClusterController.tick

    def watched_tick(controller: ClusterController) -> Any:  # noqa: ANN401 - as the original
        walk = Walk()
        with walk.recording():
            result = tick(controller)
        if getattr(result, "plan", result).actions:
            # Only the simulator draws random numbers in a tick.
            walks.append({n for n in walk.files if not n.startswith("sim/") and n != "base/rng.py"})
        return result

    with replaced(ClusterController, "tick", watched_tick):
        simulate(1)
    return sorted(walks, key=len)[len(walks) // 2]


@contextmanager
def replaced(owner: type, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _fit(reports: int) -> None:
    from muster import tune

    def train(config: dict[str, Any]) -> None:
        from muster import tune

        for step in range(reports):
            tune.report({"loss": 1.0 / (step + 1)})

    with tempfile.TemporaryDirectory() as directory:
        tune.Tuner(train, run_config=tune.RunConfig(storage_path=directory, verbose=0)).fit()


WALKS: dict[str, Callable[[], set[str]]] = {
    "one report": one_report,
    "whole fit": whole_fit,
    "muster plan": plan,
    "one tick": one_tick,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", action="store_true", help="list the files of each walk")
    parser.add_argument("--walk", choices=WALKS, help="only this one, in this process")
    given = parser.parse_args()
    if given.walk is None:
        for name in WALKS:
            files = ["--files"] if given.files else []
            subprocess.run([sys.executable, __file__, "--walk", name, *files], check=True)
        return
    with redirect_stdout(io.StringIO()):
        files = WALKS[given.walk]()
    print(f"{given.walk:12} {len(files):4} files, at most {LIMITS[given.walk]}")
    if given.files:
        print("".join(f"    {each}\n" for each in sorted(files)))


if __name__ == "__main__":
    main()
