"""Training: the step, the loop, evaluation, and what a run leaves behind."""

from .average import Average
from .batches import Batch, BatchSource, HeldOutSource, NextToken, Objective, TokenWindows
from .config import TrainConfig
from .events import EndedEarly, Evaluated, Event, Sampled, Saved, Stepped
from .load import load_model
from .metrics import Metrics, read_metrics
from .peak import measure_peak
from .step import Evaluation, StepResult, accumulate, evaluate, evaluate_batches, evaluate_file, train_step
from .trainer import Trainer, TrainResult
from .update import make_optimizer

__all__ = [
    "Average",
    "Batch",
    "BatchSource",
    "EndedEarly",
    "Evaluated",
    "Evaluation",
    "Event",
    "HeldOutSource",
    "Metrics",
    "NextToken",
    "Objective",
    "Sampled",
    "Saved",
    "StepResult",
    "Stepped",
    "TokenWindows",
    "TrainConfig",
    "TrainResult",
    "Trainer",
    "accumulate",
    "evaluate",
    "evaluate_batches",
    "evaluate_file",
    "load_model",
    "make_optimizer",
    "measure_peak",
    "read_metrics",
    "train_step",
]
