"""A session that writes down what is reported, and reads checkpoints while they exist."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager

from muster.session.checkpoint import Checkpoint
from muster.session.session import TuneContext, install, uninstall


class Recorded:
    def __init__(self, directory):
        self.context, self.directory = TuneContext(), directory
        self.reports, self.checkpoints = [], {}  # checkpoints by the number of the report they came with

    def report(self, metrics, checkpoint=None):
        self.reports.append(dict(metrics))
        if checkpoint is not None:
            kept = self.directory / f"checkpoint_{len(self.reports)}"
            shutil.copytree(checkpoint.path, kept)
            self.checkpoints[len(self.reports)] = Checkpoint(str(kept))

    def get_checkpoint(self):
        return None

    def files(self):
        """What each checkpoint holds."""
        return {number: sorted(os.listdir(each.path)) for number, each in self.checkpoints.items()}


@contextmanager
def recorded(directory):
    made = Recorded(directory)
    token = install(made, whole_process=True)
    try:
        yield made
    finally:
        uninstall(token)
