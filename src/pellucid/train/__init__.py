"""Training: the step, the loop, evaluation, and what a run leaves behind."""

from .choices import ChoiceResult, Scores, evaluate_choices, score_choices
from .config import TrainConfig
from .doubts import asked, doubts, overlap, run_length
from .events import Evaluated, Event, Sampled, Saved, Stepped
from .load import load_model
from .metrics import Metrics, read_metrics
from .peak import measure_peak
from .step import Evaluation, StepResult, accumulate, evaluate, evaluate_file, train_step
from .trainer import Trainer, TrainResult, make_optimizer

__all__ = [
    "ChoiceResult",
    "Evaluated",
    "Evaluation",
    "Event",
    "Metrics",
    "Sampled",
    "Saved",
    "Scores",
    "StepResult",
    "Stepped",
    "TrainConfig",
    "TrainResult",
    "Trainer",
    "accumulate",
    "asked",
    "doubts",
    "evaluate",
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
