"""Logs results to TensorBoard event files."""

from __future__ import annotations

from muster.tune.logger.files.trial_log import TBX
from muster.tune.logger.logger import FileLogger


class TBXLoggerCallback(FileLogger):
    """A TBXLoggerCallback writes TensorBoard event files in each trial's directory; it is on by default.

    Numbers of results are logged under ray/tune/, and so are arrays: as an image, a sheet of images or a
    video with three, four or five dimensions, else as a histogram. The config goes to HPARAMS at the end.
    """

    _is_stock = True
    kinds = TBX
