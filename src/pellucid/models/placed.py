"""A batch on its way into a model: checked on the host, where refusing it is cheap, then on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.errors import DataError, ShapeError
from ..device import Device
from ..ops import tensor
from ..tape import Tensor
from .config import TransformerConfig
from .routing import counted_tokens

Ids = Tensor | np.ndarray[Any, Any] | Sequence[Any]
Host = np.ndarray[Any, Any]


class Places(NamedTuple):
    """Where the tokens of packed rows stand: int32 (batch, time) each, as `SelfAttention` takes them."""

    starts: Tensor | None = None
    positions: Tensor | None = None


IN_ORDER = Places()


class Placed(NamedTuple):
    """A batch on the device. inputs, targets: (batch, time) ids; weights: (batch * time,) of the targets, None for the
    mean; starts, positions: see `Places`; counted: (batch * time,), tokens that go to experts, None for all; share:
    sum of the weights, which the penalty of routers is multiplied with."""

    inputs: Tensor
    targets: Tensor
    weights: Tensor | None
    starts: Tensor | None
    positions: Tensor | None
    counted: Tensor | None
    share: float


class Checked(NamedTuple):
    """The same on the host: int64 ids that are in the vocabulary, float32 weights, int32 starts and positions."""

    inputs: Host
    targets: Host
    weights: Host | None
    starts: Host | None
    positions: Host | None
    counted: Host | None
    share: float

    @property
    def arrays(self) -> list[Host]:
        """Those that are there, in order."""
        return [x for x in self if isinstance(x, np.ndarray)]

    def on(self, device: Device) -> Placed:
        """A copy on the device."""
        weights, starts, positions, counted = (None if x is None else tensor(x, device=device) for x in self[2:6])
        inputs, targets = tensor(self.inputs, device=device), tensor(self.targets, device=device)
        return Placed(inputs, targets, weights, starts, positions, counted, self.share)


def checked_batch(
    where: str, config: TransformerConfig, ids: Ids, targets: Ids, weights: Any, starts: Any, positions: Any
) -> Checked:
    """What `TransformerLM.loss` is given. Raises DataError or ShapeError, which name `where` or what is wrong."""
    inputs, expected = checked_ids(ids, config), checked_ids(targets, config, what="targets")
    shape = inputs.shape
    if shape != expected.shape:
        raise ShapeError(where, "targets do not fit the ids", got=expected.shape, expected=shape)
    host = None if weights is None else np.asarray(weights, np.float32).reshape(shape)
    begins, places = (_checked_places(where, n, x, shape) for n, x in (("starts", starts), ("positions", positions)))
    counted, share = None, 1.0
    if config.experts is not None and host is not None:
        counted, share = counted_tokens(host, begins), float(host.sum(dtype=np.float64))
    return Checked(inputs, expected, None if host is None else host.reshape(-1), begins, places, counted, share)


def _checked_places(where: str, name: str, given: Any, shape: tuple[int, ...]) -> Host | None:
    if given is None:
        return None
    host = np.asarray(given)
    if host.shape != shape or host.dtype.kind not in "iu":
        raise ShapeError(
            where, f"{name} do not fit the ids", got=f"{host.dtype} {host.shape}", expected=f"integers {shape}"
        )
    return host.astype(np.int32, copy=False)


def checked_ids(ids: Ids, config: TransformerConfig, *, start: int = 0, what: str = "ids") -> Host:
    """Ids on the host: int64 (batch, time), that are in the vocabulary and fit the context behind `start` others."""
    host = ids.device.download(ids.array) if isinstance(ids, Tensor) else np.asarray(ids)
    if host.size == 0:
        raise DataError(what, "no tokens", got=host.shape, expected="at least one id")
    if host.dtype.kind not in "iu":
        raise DataError(what, "token ids are not integers", got=host.dtype)
    if host.ndim == 1:
        host = host[None]
    if host.ndim != 2:
        raise ShapeError(what, "ids have the wrong rank", got=host.shape, expected="(batch, time)")
    low, high = int(host.min()), int(host.max())
    if low < 0 or high >= config.vocab_size:
        raise DataError(
            what,
            "id outside the vocabulary",
            got=low if low < 0 else high,
            expected=f"0 to {config.vocab_size - 1}",
            hint="use the tokenizer the model was trained with",
        )
    if start + host.shape[1] > config.max_seq_len:
        raise DataError(
            what,
            "longer than the context",
            got=f"{start + host.shape[1]} tokens",
            expected=f"at most {config.max_seq_len}",
            hint="shorten the prompt or ask for fewer new tokens",
        )
    return host.astype(np.int64, copy=False)
