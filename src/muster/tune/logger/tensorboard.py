"""TBXLoggerCallback: TensorBoard event files, scalars under ray/tune/."""

from __future__ import annotations

from muster.tune.logger.logger import FileLogger
from muster.tune.logger.trial_log import TBX


class TBXLoggerCallback(FileLogger):
    """Writes TensorBoard event files, scalars under ray/tune/ in each trial's directory; on by default."""

    _is_stock = True
    kinds = TBX
