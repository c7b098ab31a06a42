"""The best held-out loss of a run: which checkpoint is worth keeping, and when going on is not worth it."""

from __future__ import annotations

from typing import Any


class Judge:
    """Remembers the best evaluation. best_loss: nats/token; best_step: when; worse: evaluations since then."""

    def __init__(self) -> None:
        self.best_loss: float | None = None
        self.best_step: int | None = None
        self.worse = 0

    def saw(self, step: int, loss: float) -> bool:
        """Takes the evaluation after `step` steps; whether it is the best so far. Only evaluations over the same text
        may be compared."""
        if self.best_loss is None or loss < self.best_loss:
            self.best_loss, self.best_step, self.worse = loss, step, 0
            return True
        self.worse += 1
        return False

    def state(self) -> dict[str, Any]:
        return {"loss": self.best_loss, "step": self.best_step, "worse": self.worse}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes `state()` back."""
        self.best_loss, self.best_step, self.worse = state["loss"], state["step"], state["worse"]
