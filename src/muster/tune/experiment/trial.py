"""Provides Trial at Ray's import path, and the names of export formats."""

from __future__ import annotations

from collections.abc import Sequence

from muster.trials.model import Trial
from muster.tune.trainable.trainable import check_export_formats

__all__ = ["ExportFormat", "Trial"]


class ExportFormat:
    """An ExportFormat is a format that `Trainable.export_model` can be asked for."""

    CHECKPOINT = "checkpoint"
    MODEL = "model"
    ONNX = "onnx"
    H5 = "h5"

    @staticmethod
    def validate(formats: Sequence[str]) -> None:
        """Raises TuneError when one of them is unknown."""
        check_export_formats(formats)
