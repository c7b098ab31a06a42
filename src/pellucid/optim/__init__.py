"""Optimizers (SGD, AdamW, Lion, Muon), clipping to a global norm, and learning-rate schedules."""

from .lion import Lion
from .muon import Muon, orthogonalized
from .optimizer import SGD, AdamW, Group, Optimizer, clip_scale
from .schedule import Schedule

__all__ = ["SGD", "AdamW", "Group", "Lion", "Muon", "Optimizer", "Schedule", "clip_scale", "orthogonalized"]
