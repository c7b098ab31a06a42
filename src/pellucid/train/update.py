"""What of a model is updated, and by which rule: from the configuration to an optimizer."""

from __future__ import annotations

from ..base.errors import ConfigError
from ..models import TransformerLM
from ..models.transformer import operand_dtype
from ..optim import SGD, AdamW, Group, Lion, Muon, Optimizer
from ..optim.optimizer import matching
from .config import TrainConfig

TABLES = ("model.embed_tokens.weight", "lm_head.weight")
"""Tables with a row for each token."""


def make_optimizer(model: TransformerLM, config: TrainConfig) -> Optimizer:
    """The configured optimizer over the model's parameters, those frozen that are to stay.

    Raises ConfigError for a pattern that matches no parameter, and where nothing is left to train.
    """
    _freeze(model, config)
    # Beside an adapter everything is frozen, and may be held, so that there are no parameters to name.
    named, c = list(model.named_parameters() if model.adapters is None else model.named_trained()), config
    groups = [Group.parse(text) for text in c.groups]
    rate, decay = c.learning_rate, c.weight_decay
    if c.optimizer == "sgd":
        optimizer: Optimizer = SGD(named, learning_rate=rate, momentum=c.momentum, weight_decay=decay, groups=groups)
    elif c.optimizer == "lion":
        optimizer = Lion(named, learning_rate=rate, beta1=c.beta1, beta2=c.beta2, weight_decay=decay, groups=groups)
    elif c.optimizer == "muon":
        optimizer = Muon(
            named,
            learning_rate=rate,
            momentum=c.momentum,
            beta1=c.beta1,
            beta2=c.beta2,
            eps=c.eps,
            weight_decay=decay,
            groups=groups,
            operand_dtype=operand_dtype(model.config),
        )
    else:
        optimizer = AdamW(
            named, learning_rate=rate, beta1=c.beta1, beta2=c.beta2, eps=c.eps, weight_decay=decay, groups=groups
        )
    if c.train_rows_from is not None:
        for name in TABLES:
            if name in optimizer.parameters:
                optimizer.keep_rows(name, c.train_rows_from)
    return optimizer


def _freeze(model: TransformerLM, config: TrainConfig) -> None:
    if not config.freeze and config.train_rows_from is None:
        return
    named = dict(model.named_parameters())
    frozen = {name for pattern in config.freeze for name in matching(pattern, named, where="freeze", what="a pattern")}
    if config.train_rows_from is not None:
        if config.train_rows_from >= model.config.vocab_size:
            expected = f"below {model.config.vocab_size}, the rows of the table"
            raise ConfigError("train_rows_from", "no new rows", got=config.train_rows_from, expected=expected)
        frozen = set(named) - set(TABLES)
    for name in frozen:
        named[name].requires_grad = False
