"""Prepare the command of one trial: its words, its environment, its files; starts it and explains its end."""

from __future__ import annotations

import _socket
import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muster.engines.worker.session import TrialSession
from muster.errors import CommandError, NeverReported
from muster.host import machine
from muster.host.tree_guard import start_guarded
from muster.session.report import REPORT_TO
from muster.tune.commands.checkpoints import resume_path
from muster.tune.commands.command import CHECKPOINTS, CONFIG_FILE, Command
from muster.tune.commands.output import METRICS
from muster.tune.commands.template import as_json, fill_word


@dataclass(frozen=True)
class Prepared:
    """Everything that one run of a command needs."""

    words: list[str]
    env: dict[str, str]
    cwd: str
    trial_id: str
    trial_dir: str
    report_to: str
    metrics: tuple[str, ...]
    paths: list[str]  # of the result files, "" for other ways to report
    checkpoint_pattern: str
    stop_command: list[str]
    is_guarded: bool  # nobody else ends what it starts: it runs below a guard

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command in a new session; CommandError when it cannot be started."""
        make = start_guarded if self.is_guarded else subprocess.Popen
        try:
            return make(
                self.words,
                cwd=self.cwd,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            node = machine.hostname()
            if not os.path.isdir(self.cwd):
                what = f"{self.cwd}: the directory of the command does not exist on {node}"
                fix = "send it with `muster submit` or a runtime_env, or use a shared storage"
                raise CommandError(what, fix=fix) from None
            what = f"{self.words[0]}: {error.strerror} on {node} (PATH={self.env.get('PATH', '')})"
            raise CommandError(what, fix="install it there, or use its full path") from None
        except ValueError as error:
            fix = "remove NUL bytes from its arguments"
            raise CommandError(f"{self.words[0]}: {error}", fix=fix) from None

    def failure(self, code: int, last_lines: str) -> CommandError:
        """Return the error of a command that failed."""
        how = f"ended with exit code {code}"
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                how += f", perhaps out of memory (kills by the kernel so far: {machine.oom_kills()})"
        what = f"the command of trial {self.trial_id} {how}"
        shown = f"{what}; its last lines:\n{last_lines}\n" if last_lines else ""
        return CommandError(f"{shown}{what}; the whole output: {self.log_path}", exit_code=code)

    @property
    def log_path(self) -> str:
        return os.path.join(self.trial_dir, "output.log")

    def silence(self, code: int, seen: list[str], last_lines: str) -> CommandError:
        """Return the error of a command that ended well without a result."""
        wanted = " and ".join(self.metrics) or "a result"
        found = f"seen: {', '.join(seen[:20])}" if seen else "no values were seen"
        last = last_lines.rpartition("\n")[2]
        return NeverReported(
            f"the command of trial {self.trial_id} ended with {code} and never reported {wanted} ({found}; "
            f"last line: {last!r}; the whole output: {self.log_path})",
            fix="correct the metric, or choose another way with report=",
            exit_code=code,
        )


def prepare(command: Command, config: dict[str, Any], session: TrialSession) -> Prepared:
    """Write the files of a run, and fill the placeholders of everything."""
    about, variables = session.describe(), machine.environment()
    bundles = [bundle for bundle in about["resources"]["bundles"] if bundle]
    if len(bundles) > 1 and not session.channel.has_reaper:
        fix = "ask for one bundle with tune.with_resources"
        raise CommandError("a command runs on one node, and its trial has several bundles", fix=fix)
    trial_dir = os.path.abspath(about["trial_dir"])
    checkpoints = os.path.join(trial_dir, CHECKPOINTS)
    shutil.rmtree(checkpoints, ignore_errors=True)  # of an earlier attempt, which may have got further
    os.makedirs(checkpoints)
    places = {
        "checkpoint": checkpoints,
        "resume": resume_path(session.get_checkpoint()),
        "trial_dir": trial_dir,
        **{name: str(about[name]) for name in ("trial_id", "trial_name")},
        "experiment": str(about["experiment_name"]),
        **_resources(about["resources"]["required_resources"], variables),
        **_written(command, config, trial_dir),
        **{f"env:{name}": value for name, value in variables.items()},
    }
    if command.uses("port"):
        places["port"] = str(_free_port())
    values = command.values(config, places)
    cwd = "".join(fill_word(command.cwd, values)) if command.cwd else command.home
    pattern = "".join(fill_word(command.checkpoint, values)) if command.checkpoint else f"{checkpoints}/*"
    return Prepared(
        words=command.words(config, places),
        env=_environment(command, config, places),
        cwd=os.path.join(command.home, cwd),
        trial_id=places["trial_id"],
        trial_dir=trial_dir,
        report_to=variables[REPORT_TO],
        metrics=tuple(json.loads(variables.get(METRICS, "[]"))),
        paths=[
            os.path.join(command.home, cwd, "".join(fill_word(way.argument, values))) if way.is_file else ""
            for way in command.report
        ],
        checkpoint_pattern=os.path.join(command.home, cwd, pattern),
        stop_command=[word for text in command.stop_command for word in fill_word(text, values)],
        is_guarded=not session.channel.has_reaper,
    )


def _environment(command: Command, config: dict[str, Any], places: Mapping[str, str]) -> dict[str, str]:
    return {
        "PYTHONUNBUFFERED": "1",
        **machine.environment(),
        "MUSTER_TRIAL_ID": places["trial_id"],
        "MUSTER_TRIAL_NAME": places["trial_name"],
        "MUSTER_TRIAL_DIR": places["trial_dir"],
        "MUSTER_EXPERIMENT": places["experiment"],
        "MUSTER_CONFIG": places["config"],
        "MUSTER_CHECKPOINT_DIR": places["checkpoint"],
        "MUSTER_RESUME_FROM": places["resume"],
        **command.variables(config, places),
    }


def _resources(required: Mapping[str, float], variables: Mapping[str, str]) -> dict[str, str]:
    gpus = variables.get("CUDA_VISIBLE_DEVICES", "") if required.get("GPU") else ""
    count = len([part for part in gpus.split(",") if part])
    return {"gpus": gpus, "ngpus": str(count), "cpus": f"{required.get('CPU', 0.0):g}"}


def _written(command: Command, config: dict[str, Any], trial_dir: str) -> dict[str, str]:
    """Write the config as JSON, and as YAML where the command wants that."""
    texts = {"config": as_json(config, "config")}
    if command.uses("config.wandb"):  # WANDB_SWEEP_PARAM_PATH names such a file
        values = {key: {"value": value} for key, value in json.loads(texts["config"]).items()}
        texts["config.wandb"] = json.dumps({"wandb_version": 1, **values})
    if command.uses("config.yaml"):
        import yaml

        texts["config.yaml"] = yaml.safe_dump(json.loads(texts["config"]), sort_keys=False)
    paths = {}
    for name, text in texts.items():
        paths[name] = f"{trial_dir}/{CONFIG_FILE}{name[6:] or '.json'}"
        with open(paths[name], "w", encoding="utf-8") as stream:  # nobody reads it before the command starts
            stream.write(text)
    return paths


def _free_port() -> int:
    with contextlib.closing(_socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
