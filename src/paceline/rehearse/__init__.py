"""The virtual world: what a training step would cost, before it is run."""

from __future__ import annotations

from paceline.rehearse.conditions import Conditions
from paceline.rehearse.mixed import MixedPrediction, predict_mixed
from paceline.rehearse.play import play
from paceline.rehearse.predict import predict
from paceline.rehearse.prediction import Prediction
from paceline.rehearse.price import price
from paceline.rehearse.program import Programs
from paceline.rehearse.record import Recording, record
from paceline.rehearse.rehearsal import Rehearsal
from paceline.rehearse.summarise import summarise
from paceline.rehearse.timeline import Timeline

__all__ = [
    "Conditions",
    "MixedPrediction",
    "Prediction",
    "Programs",
    "Recording",
    "Rehearsal",
    "Timeline",
    "play",
    "predict",
    "predict_mixed",
    "price",
    "record",
    "summarise",
]
