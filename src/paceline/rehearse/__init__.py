"""The virtual world: what a training step would cost, before it is run."""

from __future__ import annotations

from paceline.rehearse.predict import predict
from paceline.rehearse.prediction import Prediction

__all__ = ["Prediction", "predict"]
