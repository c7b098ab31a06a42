"""Training: the step, the loop, evaluation, and what a run leaves behind."""

from .average import Average
from .config import TrainConfig
from .events import EndedEarly, Evaluated, Event, Sampled, Saved, Stepped
from .load import load_model
from .metrics import Metrics, read_metrics
from .peak import measure_peak
from .step import Evaluation, StepResult, accumulate, evaluate, evaluate_file, train_step
from .trainer import Trainer, TrainResult
from .update import make_optimizer

__all__ = [
    "Average",
    "EndedEarly",
    "Evaluated",
    "Evaluation",
    "Event",
    "Metrics",
    "Sampled",
    "Saved",
    "StepResult",
    "Stepped",
    "TrainConfig",
    "TrainResult",
    "Trainer",
    "accumulate",
    "evaluate",
    "evaluate_file",
    "load_model",
    "make_optimizer",
    "measure_peak",
    "read_metrics",
    "train_step",
]
