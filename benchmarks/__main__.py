"""The benchmarks as a program: `python -m benchmarks [case ...] [--peer torch] [--json]`.

Results go to stdout, progress to stderr; with --json the last line is one JSON object. Each case compares results
before it takes a time, and measures a peer interleaved with ours, in the same process and on the same load.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from . import decode, dispatch, experts, gemm, kernels, nanogpt, packing, ratios, startup, text, train, xor
from .options import Refused
from .report import Row, as_json, environment, table
from .train import MODELS, PRECISIONS, WIDTHS, TrainOptions, parse_shape

#: Every case: its name, what runs it, what it is.
CASES: dict[str, tuple[Callable[[TrainOptions], list[Row]], str]] = {
    "import": (startup.run_import, "`import pellucid` over a bare interpreter"),
    "first-step": (startup.run_first_step, "a fresh process until nanoGPT's first training step, cold and warm"),
    "dispatch": (dispatch.run, "an operation on 64 elements with the tape on"),
    "gemm": (gemm.run, "matrix products at the shapes of the 101.7M model, beside oneDNN"),
    "kernels": (kernels.run, "kernels at the shapes of two models, and their share of this machine's ceilings"),
    "xor": (xor.run, "2000 steps of a network of 33 parameters: overhead and nothing else"),
    "train": (train.run, "a whole training step of a 101.7M and a 4.0M model, and its share of the measured roofline"),
    "experts": (experts.run, "a training step of a mixture of experts over that of a dense model of its active size"),
    "packing": (packing.run, "useful tokens a second of packed rows of instructions, over a row of 512 for each"),
    "decode": (decode.run_decode, "tokens after 128 of context, shape of SmolLM2-135M; peer llama.cpp"),
    "prefill": (decode.run_prefill, "a prompt of 512 tokens, same shape; peer llama.cpp"),
    "tokenizers": (text.run, "a vocabulary trained and encoded with; peers tokenizers and sentencepiece, both at once"),
    "nanogpt": (nanogpt.run, "the whole CPU recipe of nanoGPT on real text, up to its validation loss"),
}


def parser() -> argparse.ArgumentParser:
    cases = "\n".join(f"  {name:<12} {about}" for name, (_, about) in CASES.items())
    p = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="What Pellucid costs, beside a peer in the same run.",
        epilog=f"cases:\n{cases}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("cases", nargs="*", metavar="case", help="which ones to run; default: all, in the order below")
    peers = ("torch", "jax", "llama.cpp", "tokenizers", "none")
    p.add_argument("--peer", choices=peers, default="none", help="run beside it; default none")
    p.add_argument(
        "--peer-python", metavar="PATH", help="interpreter that has llama-cpp-python and gguf; default: this one"
    )
    p.add_argument("--data", type=Path, help="folder of real data; default PELLUCID_DATA, else ../shared/data")
    p.add_argument("--threads", type=int, default=2, help="CPU threads of each side; default %(default)s")
    p.add_argument("--iterations", type=int, help="steps: of nanogpt, default its 2000; of train, timed, default 11")
    p.add_argument("--block", type=int, default=100, help="training steps in a turn; default %(default)s")
    p.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="of matrix products; default: float32 in nanogpt, else both",
    )
    p.add_argument("--weights", choices=WIDTHS, help="width of the weights in decode and prefill; default: each")
    p.add_argument(
        "--gguf", type=Path, metavar="FILE", help="decode, prefill: the model in a file, and llama.cpp on it"
    )
    p.add_argument("--model", choices=MODELS, help="which one train trains; default: both")
    p.add_argument("--shape", type=parse_shape, help="sequences x tokens of a step of train; default: the model's")
    p.add_argument("--compile", action="store_true", help="train: beside PyTorch's eager path its compiled one too")
    p.add_argument("--memory", action="store_true", help="train: peak memory of each side in a process of its own too")
    p.add_argument("--quick", action="store_true", help="fewer repetitions")
    p.add_argument("--record", type=Path, metavar="FILE", help="add this run's ratios to peers to a file")
    p.add_argument(
        "--against", type=Path, metavar="FILE", help="end with status 1 if a ratio fell behind the recorded one"
    )
    p.add_argument("--json", action="store_true", help="end with one line of JSON")
    return p


def main(argv: list[str] | None = None) -> int:
    p = parser()
    given = p.parse_args(argv)
    unknown = [name for name in given.cases if name not in CASES]
    if unknown:
        p.error(f"no such case: {', '.join(unknown)}; expected some of {', '.join(CASES)}")
    for name in ("threads", "iterations", "block"):
        value = getattr(given, name)
        if value is not None and value < 1:
            p.error(f"--{name} must be at least 1; got {value}")
    peer = None if given.peer == "none" else given.peer
    if peer == "llama.cpp" and not set(given.cases or CASES) <= {"decode", "prefill"}:
        p.error("llama.cpp is the peer of decode and prefill alone: name these cases")
    if peer == "tokenizers" and given.cases != ["tokenizers"]:
        p.error("tokenizers is the peer of the case of that name alone: name it")
    options = TrainOptions(
        peer,
        given.data,
        given.threads,
        given.iterations,
        given.block,
        given.quick,
        precision=given.precision or "float32",
        model=given.model,
        shape=given.shape,
        compiled=given.compile,
        memory=given.memory,
        precisions=(given.precision,) if given.precision else PRECISIONS,
        widths=(given.weights,) if given.weights else WIDTHS,
        peer_python=given.peer_python,
        gguf=given.gguf,
    )
    # Read once, by the first kernel: before anything runs, after everything is imported.
    os.environ["PELLUCID_THREADS"] = str(options.threads)
    about = environment(options.threads)
    if peer == "torch":
        try:
            torch = import_module("torch")
        except ImportError:
            p.error("PyTorch is not installed; `make peers` installs it")
        torch.set_num_threads(options.threads)
        about["torch"] = torch.__version__
    elif peer == "jax":
        if given.cases != ["train"]:
            p.error("jax is the peer of train alone: name this case")
        try:
            about["jax"] = import_module("jax").__version__
        except ImportError:
            p.error("JAX is not installed; `pip install -r requirements-jax.txt` installs it")
    elif peer == "tokenizers":
        for name in ("tokenizers", "sentencepiece"):
            try:
                about[name] = version(name)
            except PackageNotFoundError:
                p.error(f"{name} is not installed; `make peers` installs it")
    print(", ".join(f"{k} {v}" for k, v in about.items()), file=sys.stderr)
    found: list[Row] = []
    try:
        for name in given.cases or CASES:
            print(f"{name}: {CASES[name][1]}", file=sys.stderr, flush=True)
            found += CASES[name][0](options)
    except Refused as refusal:
        print(f"benchmarks: {refusal}", file=sys.stderr)
        return 2
    print(table(found))
    behind: list[str] = []
    try:
        if given.against:
            behind = ratios.worse(given.against, found, about)
        if given.record:
            ratios.record(given.record, found, about)
    except Refused as refusal:
        print(f"benchmarks: {refusal}", file=sys.stderr)
        return 2
    for line in behind:
        print(f"behind: {line}", file=sys.stderr)
    if given.json:
        print(json.dumps({**about, "rows": as_json(found)}))
    return 1 if behind else 0


if __name__ == "__main__":
    sys.exit(main())
