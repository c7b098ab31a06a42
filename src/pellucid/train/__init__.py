"""Training: the step, the loop, evaluation, and what a run leaves behind."""

from .average import Average
from .batches import Batch, BatchSource, HeldOutSource, NextToken, Objective, TokenWindows
from .choices import ChoiceResult, Scores, evaluate_choices, score_choices
from .config import TrainConfig
from .doubts import doubts
from .events import EndedEarly, Evaluated, Event, Sampled, Saved, Stepped
from .metrics import Metrics, read_metrics
from .peak import measure_peak
from .preferences import PairBatch, Pairs, PreferenceLoss, reference_log_probs
from .replay import RecordedStep
from .step import Evaluation, StepResult, accumulate, evaluate, evaluate_batches, evaluate_file, train_step
from .supervised import Encoding
from .trainer import Trainer, TrainResult
from .update import make_optimizer

__all__ = [
    "Average",
    "Batch",
    "BatchSource",
    "ChoiceResult",
    "Encoding",
    "EndedEarly",
    "Evaluated",
    "Evaluation",
    "Event",
    "HeldOutSource",
    "Metrics",
    "NextToken",
    "Objective",
    "PairBatch",
    "Pairs",
    "PreferenceLoss",
    "RecordedStep",
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
    "doubts",
    "evaluate",
    "evaluate_batches",
    "evaluate_choices",
    "evaluate_file",
    "make_optimizer",
    "measure_peak",
    "read_metrics",
    "reference_log_probs",
    "score_choices",
    "train_step",
]
