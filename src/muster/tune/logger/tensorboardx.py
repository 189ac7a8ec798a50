"""Logs results to TensorBoard event files."""

from __future__ import annotations

from muster.tune.logger.files.trial_log import TBX
from muster.tune.logger.logger import FileLogger


class TBXLoggerCallback(FileLogger):
    """A TBXLoggerCallback writes TensorBoard event files in each trial's directory; it is on by default.

    Numbers of results stand under ray/tune/, and so do arrays: as pictures, sheets of pictures and films with
    three, four and five dimensions, else as histograms. At the end of a trial its config goes to HPARAMS.
    """

    _is_stock = True
    kinds = TBX
