"""Provide Trial at Ray's import path, and the names of export formats."""

from __future__ import annotations

from collections.abc import Sequence

from muster.errors import TuneError
from muster.trials.model import Trial

__all__ = ["ExportFormat", "Trial"]


class ExportFormat:
    """A usual format of `Trainable.export_model`; a class may have other formats."""

    CHECKPOINT = "checkpoint"
    MODEL = "model"
    ONNX = "onnx"
    H5 = "h5"

    @staticmethod
    def validate(formats: Sequence[str]) -> None:
        """Raise TuneError when one of them is not a usual one; for classes that know only these."""
        known = (ExportFormat.CHECKPOINT, ExportFormat.MODEL, ExportFormat.ONNX, ExportFormat.H5)
        for each in formats:
            if not isinstance(each, str) or each.strip().lower() not in known:
                raise TuneError(f"unknown export format {each!r}: use some of {', '.join(known)}")
