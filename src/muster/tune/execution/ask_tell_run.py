"""Assemble an experiment whose trials are run by a loop of the user; AskTell drives it.

The store, plug-ins, loggers, uploads and restore are those of `launch`; the engine waits for the user instead
of for processes. Nothing is decided about trials here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from msgspec.structs import replace

from muster.engines.ask_tell_engine import AskTellEngine
from muster.errors import TuneError
from muster.host.machine import environment
from muster.stores.checkpoints import DeletionQueue
from muster.stores.experiment.store import SqliteTrialStore
from muster.trials.controller import TrialController
from muster.trials.experiment import ExperimentState
from muster.trials.plugins import Plugins
from muster.trials.template import TrialTemplate
from muster.tune.callback import CallbackList
from muster.tune.execution.assemble import scheduler_of, search_of, settings_of, stopper_of, template_of
from muster.tune.execution.between_steps import CheckedCheckpoints, ExperimentSaver, delete_checkpoint
from muster.tune.execution.launch import ExperimentSpec
from muster.tune.execution.paths import directory_namer
from muster.tune.execution.restore import Restorer, keep_parameters, write_spec
from muster.tune.logger.files.writer import LogWriter
from muster.tune.logger.logger import attach_loggers, default_callbacks
from muster.tune.plugin_state import settings_record

logger = logging.getLogger(__name__)


class AskTellRun:
    """An open experiment; the caller closes it."""

    def __init__(self, wanted: ExperimentSpec) -> None:
        self._wanted = wanted
        self._clock = wanted.clock
        wanted.place.prepare()
        if wanted.resume is None:
            keep_parameters(wanted.references, wanted.place, self._clock)
            write_spec(wanted)
        self.engine = AskTellEngine(self._clock)
        with ExitStack() as stack:
            self._writer = LogWriter(self._clock)
            stack.callback(self._writer.close)
            self._uploads = wanted.uploads()
            chosen = default_callbacks(self._wanted.run.callbacks, environment())
            if self._uploads is not None:
                chosen.append(self._uploads)
            attach_loggers(chosen, self._writer, str(self._wanted.place.directory))
            self._hooks = CallbackList(chosen)
            self._template = _template(wanted)
            self.state = self._make_state()
            self._store = stack.enter_context(SqliteTrialStore(wanted.place.directory, trust_pickles=True))
            self._deletions = DeletionQueue(
                partial(delete_checkpoint, uploads=self._uploads), self._store.sync, clock=self._clock
            )
            self.controller = self._begin()
            self._open = stack.pop_all()

    def flush(self) -> None:
        """Wait until results are in their files."""
        self._writer.flush()

    def close(self) -> None:
        """Save and complete everything and, where that is configured, copy it."""
        with self._open:
            self.controller.save()
            self._deletions.close()
            state = self.state
            state.plugins.fire("on_experiment_end")
            self._writer.close()
            self._log_problems(self._writer.take_problems())
            if self._uploads is not None:
                self._store.sync()
                self._uploads.finish()
                self._log_problems(self._uploads.take_problems())
        self.engine.close()

    def _begin(self) -> TrialController:
        wanted, state = self._wanted, self.state
        self._store.save_settings(settings_record(wanted.trainable_name, wanted.tune, state))
        saver = ExperimentSaver(state, store=self._store, clock=self._clock, logs=self._writer)
        checkpoints, find = wanted.place.checkpoints(), state.index.trials.get
        controller = TrialController(
            state,
            engine=self.engine,
            store=self._store,
            clock=self._clock,
            saver=saver,
            files=CheckedCheckpoints(self.engine, checkpoints, find, self._deletions),
        )
        if wanted.resume is not None:
            restorer = Restorer(wanted.resume, wanted.place, self._clock)
            restorer.restore(saver, state, self._store.load(), self._template.make)
            state.lifecycle.cancel_owed()  # only the user's loop can repeat steps
            restorer.repair_logs(self._writer, self._hooks)
            if self._uploads is not None:
                self._uploads.note(state.index.order)
        self._hooks.setup(stop=wanted.run.stop, num_samples=wanted.tune.num_samples)
        controller.save()  # before the first suggestion: a replay starts from the searcher's first state
        return controller

    def _make_state(self) -> ExperimentState:
        wanted = self._wanted
        search, _ = search_of(wanted.tune, self._template)
        settings = settings_of(wanted.tune, wanted.run, str(wanted.place.directory), 1, environment())
        plugins = Plugins(
            search=search,
            scheduler=scheduler_of(wanted.tune),
            stopper=stopper_of(wanted.tune, wanted.run),
            hooks=self._hooks,
        )
        return ExperimentState(
            # One suggestion per ask, as late as possible: it takes every earlier result into account.
            replace(settings, max_pending=1),
            plugins,
            capacity=self.engine.capacity(),
            directory_for=directory_namer(wanted.place.directory, self._clock, settings.max_len_identifier),
            place=wanted.place,
        )

    def _log_problems(self, problems: Sequence[str]) -> None:
        for problem in problems:
            logger.warning("%s", problem)


def _template(wanted: ExperimentSpec) -> TrialTemplate:
    """Return a template without resources: the loop knows itself what it can run."""
    made = template_of(wanted.trainable, wanted.param_space, wanted.tune, wanted.run)
    return replace(made, resources=None)


def stand_in(name: str) -> Callable[[dict[str, Any]], None]:
    """Return a stand-in for the loop of the user where a trainable is expected; it raises when it is run."""

    def loop(config: dict[str, Any]) -> None:
        raise TuneError("this experiment is driven by ask and tell: resume it with AskTell.restore(path)")

    loop.__name__ = name
    return loop
