"""Optimizers (SGD, AdamW), clipping to a global norm, and learning-rate schedules."""

from .optimizer import SGD, AdamW, Group, Optimizer, clip_scale
from .schedule import Schedule

__all__ = ["SGD", "AdamW", "Group", "Optimizer", "Schedule", "clip_scale"]
