"""Peer: llama.cpp, through llama-cpp-python, on a model of the shape of `benchmarks.decode` with random weights.

    python -m benchmarks.peers.llama_cpp FILE PRECISION THREADS
    python -m benchmarks.peers.llama_cpp FILE "" THREADS          the model that is in FILE

It runs as a process of its own: it writes the model as GGUF to FILE, loads it, says "ready", and answers each line on
stdin ("decode CONTEXT TOKENS" or "prefill TOKENS") with the seconds of each token or of the prompt. Between answers its
threads spin for milliseconds, then sleep. Decoding feeds each token and computes its logits, which is what a greedy
step does. PRECISION is int8 (its Q8_0, a scale for 32 weights), bfloat16 or float32; norms stay float32.

It needs what `requirements-llama.txt` pins: a build of llama.cpp from source, some ten minutes on two cores. Give it an
environment of its own and name that with --peer-python.

`Process` is the other end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

#: SmolLM2-135M; `benchmarks.decode` checks that it has the same.
SHAPE = {"layers": 30, "width": 576, "heads": 9, "kv_heads": 3, "head": 64, "hidden": 1536, "vocabulary": 49152}
_CONTEXT = 2048
_TYPES = {"int8": "Q8_0", "bfloat16": "BF16", "float32": "F32"}


def write_model(path: Path, precision: str) -> None:
    """A GGUF file of that shape, matrices drawn from N(0, 0.02**2) and stored at a precision."""
    import gguf

    kind = getattr(gguf.GGMLQuantizationType, _TYPES[precision])
    s, random = SHAPE, np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(s["width"])
    writer.add_block_count(s["layers"])
    writer.add_feed_forward_length(s["hidden"])
    writer.add_head_count(s["heads"])
    writer.add_head_count_kv(s["kv_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(s["head"])
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(s["vocabulary"])
    writer.add_tokenizer_model("no_vocab")
    q, kv = s["heads"] * s["head"], s["kv_heads"] * s["head"]
    matrices = {
        "attn_q": (q, s["width"]),
        "attn_k": (kv, s["width"]),
        "attn_v": (kv, s["width"]),
        "attn_output": (s["width"], q),
        "ffn_gate": (s["hidden"], s["width"]),
        "ffn_up": (s["hidden"], s["width"]),
        "ffn_down": (s["width"], s["hidden"]),
    }

    def matrix(name: str, shape: tuple[int, int]) -> None:
        value = random.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
        writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)

    def norm(name: str) -> None:
        writer.add_tensor(name, np.ones(s["width"], np.float32))

    matrix("token_embd.weight", (s["vocabulary"], s["width"]))
    norm("output_norm.weight")
    for i in range(s["layers"]):
        norm(f"blk.{i}.attn_norm.weight")
        norm(f"blk.{i}.ffn_norm.weight")
        for name, shape in matrices.items():
            matrix(f"blk.{i}.{name}.weight", shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def serve(path: Path, precision: str, threads: int) -> None:
    """Answers requests until stdin ends."""
    import llama_cpp

    if precision:
        write_model(path, precision)
    model = llama_cpp.Llama(
        str(path), n_ctx=_CONTEXT, n_batch=512, n_ubatch=512, n_threads=threads, n_threads_batch=threads, verbose=False
    )
    if precision:
        path.unlink()
    print("ready", flush=True)
    ids = [i * 37 % model.n_vocab() for i in range(_CONTEXT)]
    for line in sys.stdin:
        what, *numbers = line.split()
        counts = [int(n) for n in numbers]
        model.reset()
        if what == "decode":
            context, tokens = counts
            model.eval(ids[: context + 1])
            parts = [[token] for token in ids[context + 1 : context + 1 + tokens]]
        else:
            parts = [ids[: counts[0]]]
        times = []
        for part in parts:
            start = time.perf_counter()
            model.eval(part)
            times.append(time.perf_counter() - start)
        print(*times, flush=True)


class Process:
    """The peer in a process: `ask("decode", 128, 32)` gives the seconds of 32 tokens.

    `python` is an interpreter that has llama_cpp and gguf. Raises RuntimeError if it does not come up.
    """

    def __init__(self, python: str, precision: str, threads: int, *, file: Path | None = None) -> None:
        """file: a model to load as it is, instead of one made at a precision."""
        self._folder = tempfile.TemporaryDirectory()
        path = os.path.join(self._folder.name, "model.gguf") if file is None else str(file.resolve())
        command = [python, "-m", "benchmarks.peers.llama_cpp", path]
        self._process = subprocess.Popen(
            [*command, "" if file is not None else precision, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[2],
        )
        if self._read() != "ready":
            raise RuntimeError(f"{python} could not run llama.cpp; it needs llama-cpp-python and gguf")

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ask(self, what: str, *numbers: int) -> list[float]:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join([what, *map(str, numbers)]) + "\n")
        self._process.stdin.flush()
        return [float(seconds) for seconds in self._read().split()]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
