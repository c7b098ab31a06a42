"""`pellucid chat`: a model to talk to, in the terminal or through a pipe."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ..base.config import from_dict
from ..base.errors import CheckpointError, ConfigError, DataError
from ..base.files import reason
from ..checkpoint import OpenedModel, open_model
from ..generate import Conversation
from ..text import ChatML, ChatTemplate, Llama2, Llama3, Transcript
from .chat_input import Messages, terminal
from .chat_session import Session
from .machine import DeviceName, Threads, use_machine
from .output import Output, note, size
from .parse import Flag, parse, told
from .sampling import sampler_of

SETTINGS = Path("pellucid.toml")

HELP = """Talks with a model: type a message, read the answer as it comes.

Examples:
  pellucid chat runs/book-sft                          with the chat template the model was trained on
  pellucid chat runs/book --template transcript        a model that knows text only, as lines "User:" and "Assistant:"
  pellucid chat model.gguf --system "Be brief."
  pellucid chat                                        model and options from pellucid.toml in this folder
  echo "What is the sea?" | pellucid chat runs/book-sft --greedy

A message is one line. A line that ends in \\ goes on in the next one; lines between two lines of three double quotes
are one message. Text pasted into a terminal is one message, whatever it holds. Ctrl-C ends an answer, Ctrl-D the chat;
/help lists the commands. Through a pipe every line is a message, and a mistake ends the program.

pellucid.toml holds options under [chat], with _ for -: model = "runs/book-sft", temperature = 0.5, top_k = "none".
What is given on the command line wins.

A conversation that outgrows the model's context loses its oldest turns, never the system prompt, and says so."""

Off = tyro.conf.DisallowNone
TEMPLATES: dict[str, type[ChatTemplate]] = {
    "chatml": ChatML,
    "llama2": Llama2,
    "llama3": Llama3,
    "transcript": Transcript,
}


@dataclass(frozen=True)
class ChatOptions:
    """What the command line and pellucid.toml take."""

    model: Annotated[Path | None, tyro.conf.Positional, Off, told("that of pellucid.toml", "[MODEL]")] = None
    """Run folder (its newest checkpoint), checkpoint folder, Hugging Face folder or GGUF file."""
    template: str = "auto"
    """auto (the model's own), chatml, llama2, llama3, transcript (for a model that knows text only), or a file.
    A file is Jinja, or a tokenizer_config.json."""
    system: Annotated[str | None, Off, told("none", "TEXT")] = None
    """What the model is told before everything else."""
    load: Annotated[Path | None, Off, told("a new conversation", "FILE")] = None
    """Go on with a saved conversation."""
    tokens: int = 512
    """Tokens of an answer at most."""
    temperature: float = 0.8
    """Divides the logits: below 1 safer, above 1 wilder."""
    top_k: int | None = 50
    """Draw from this many most likely tokens. None: from all."""
    top_p: float | None = None
    """Draw from the most likely tokens that reach this probability together. None: from all."""
    repetition_penalty: float | None = None
    """Divides the logits of tokens the conversation already has; 1.1 is mild. None: no penalty."""
    greedy: Flag = False
    """Always the most likely token; temperature, top-k, top-p and seed have no effect."""
    seed: Annotated[int | None, Off, told("other answers every time")] = None
    """Of the draws: the same seed gives the same answers."""
    weights: Literal["float32", "bfloat16", "int8"] = "float32"
    """Hold the weights in this: int8 is the fastest and smallest, float32 the most precise."""


@dataclass(frozen=True)
class ChatCommand(ChatOptions):
    """What only the command line takes."""

    threads: Threads = None
    device: DeviceName = "cpu"
    json: Flag = False
    """One line of JSON for each answer, and one for the conversation at the end, instead of the text."""
    debug: Flag = False
    """Show a traceback with errors."""


def run(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    options = parse_chat(arguments)
    if options.model is None:
        hint = f"pellucid chat MODEL, or model = ... under [chat] in {SETTINGS}"
        raise ConfigError("pellucid chat", "no model to talk to", hint=hint)
    if options.tokens < 1:
        raise ConfigError("--tokens", "must be at least 1", got=options.tokens)
    sampler = sampler_of(options)
    use_machine(options)
    talk, source = conversation(options, device=options.device)
    nbytes = talk.model.hold_weights(options.weights)
    if terminal():
        note(f"{source}: {size(nbytes)} of weights, context {talk.model.config.max_seq_len:,}. /help lists commands.")
    session = Session(talk, sampler, Output(options.json), tokens=options.tokens)
    return session.run(Messages())


def parse_chat(arguments: Sequence[str]) -> ChatCommand:
    """The options of a command line, over those of pellucid.toml. Raises ConfigError."""
    asked = "-h" in arguments or "--help" in arguments
    given = {} if asked or not SETTINGS.exists() else read_settings(SETTINGS)
    return parse(ChatCommand, arguments, command="chat", help=HELP, default=from_dict(ChatCommand, given))


def read_settings(path: Path) -> dict[str, Any]:
    """The table [chat] of a TOML file. Raises ConfigError for a file that can't be read, unknown keys and types."""
    try:
        values = tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {reason(error)}") from error
    except ValueError as error:
        raise ConfigError(str(path), f"not a TOML file: {error}") from None
    table = values.get("chat", {})
    if not isinstance(table, dict):
        raise ConfigError(
            str(path), "chat is no table", got=type(table).__name__, hint="write [chat] above its options"
        )
    # TOML has no null.
    options = {key: None if value == "none" else value for key, value in table.items()}
    from_dict(ChatOptions, options, where=f"{path}: [chat]")
    return options


def conversation(options: ChatOptions, *, device: str = "cpu") -> tuple[Conversation, str]:
    """An empty conversation, or the one to go on with, and what its model is called."""
    assert options.model is not None
    opened = open_model(options.model, device=device)
    if opened.tokenizer is None:
        raise CheckpointError(str(options.model), "the model has no tokenizer", hint="chat needs text")
    template = template_of(options.template, opened)
    talk = Conversation(opened.model, opened.tokenizer, template, ends=opened.eos_ids, system=options.system)
    if options.load is not None:
        talk.load(options.load)
        if options.system is not None:
            talk.system = options.system
    return talk, str(opened.path)


def template_of(wanted: str, opened: OpenedModel) -> ChatTemplate:
    """The template asked for. Raises ConfigError for a model without one of its own, DataError for a file that is
    none."""
    if wanted in TEMPLATES:
        return TEMPLATES[wanted]()
    own = opened.chat_template
    if wanted == "auto" and own is None:
        hint = "--template transcript talks with a model that was trained on text alone"
        raise ConfigError(str(opened.path), "the model has no chat template", hint=hint)
    if wanted != "auto" and not Path(wanted or "?").is_file():
        expected = f"auto, {', '.join(TEMPLATES)} or a file"
        raise DataError("--template", "no such template", got=repr(wanted), expected=expected)
    from ..text.jinja import JinjaTemplate  # takes as long to load as all of the text package

    if wanted == "auto" and own is not None:
        return JinjaTemplate(own, variables=opened.special_tokens)
    return JinjaTemplate.load(wanted, variables=opened.special_tokens)
