"""Training: the step, the loop, evaluation, and what a run leaves behind."""

from .average import Average
from .batches import Batch, BatchSource, HeldOutSource, NextToken, Objective, TokenWindows
from .choices import ChoiceResult, Scores, evaluate_choices, score_choices
from .config import TrainConfig
from .doubts import asked, doubts, overlap, run_length
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
    "ChoiceResult",
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
    "Scores",
    "StepResult",
    "Stepped",
    "TokenWindows",
    "TrainConfig",
    "TrainResult",
    "Trainer",
    "accumulate",
    "asked",
    "doubts",
    "evaluate",
    "evaluate_batches",
    "evaluate_choices",
    "evaluate_file",
    "load_model",
    "make_optimizer",
    "measure_peak",
    "overlap",
    "read_metrics",
    "run_length",
    "score_choices",
    "train_step",
]
