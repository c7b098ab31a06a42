"""From a folder of poetry to a chat: a vocabulary, a model of 3.7 million parameters, an adapter that teaches it to
answer, the two in one, in a byte a weight, measured, and talked to. docs/story.md says what each command does.

Run it as `python examples/09_the_whole_story.py FOLDER-OF-TEXT [OUT]`; a third argument divides the steps, to try it.
"""

import io
import json
import shlex
import sys
from pathlib import Path

from pellucid.cli import main
from pellucid.data import documents
from pellucid.text import ChatML

ASK = "مصراع بعدی چیست؟ "

if len(sys.argv) not in (2, 3, 4):
    sys.exit("usage: python 09_the_whole_story.py FOLDER-OF-TEXT [OUT [DIVISOR]]")
corpus, out = Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "runs/story")
divisor = int(sys.argv[3]) if len(sys.argv) > 3 else 1
out.mkdir(parents=True, exist_ok=True)


def pellucid(*arguments: object, say: str | None = None) -> None:
    """Runs a command as the shell would, and shows it."""
    words = [str(a) for a in arguments]
    print(f"\n$ {f'echo {shlex.quote(say)} | ' if say else ''}pellucid {shlex.join(words)}", flush=True)
    sys.stdin = io.TextIOWrapper(io.BytesIO(f"{say}\n".encode())) if say else sys.__stdin__
    if (status := main(words)) != 0:
        sys.exit(status)


# Instructions and questions out of the text itself: a line, and the one that answers it. The questions come from the
# end of the text, which the model holds out.
lines = [line.strip() for text in documents(corpus) for line in text.splitlines()]
pairs = [(a, b) for a, b in zip(lines[::2], lines[1::2], strict=False) if a and b]
asked = pairs[-(400 // divisor) :]
with open(out / "pairs.jsonl", "w", encoding="utf-8") as file:
    for a, b in pairs[: 8000 // divisor]:
        file.write(json.dumps({"prompt": ASK + a, "response": b}, ensure_ascii=False) + "\n")
with open(out / "questions.jsonl", "w", encoding="utf-8") as file:
    for i, (a, b) in enumerate(asked):
        others = [asked[(i + k) % len(asked)][1] for k in (1, 2, 3)]
        question = {"question": a + "\n", "choices": [b, *others], "answer": 0}
        file.write(json.dumps(question, ensure_ascii=False) + "\n")

shape = ["--width", 208, "--ff", 576, "--context", 128]
steps = ["--sequences", 16, "--steps", 800 // divisor, "--warmup", 80 // divisor, "--learning-rate", 2e-3]
words = ["--vocab", max(8000 // divisor, 1000), "--special", "<|endoftext|>", *ChatML.marks]
pellucid("tokenizer", "train", "--corpus", corpus, *words, "--out", out / "words.json")
pellucid("train", "--corpus", corpus, "--tokenizer", out / "words.json", *shape, *steps, "--out", out / "base")
tuned = ["--template", "chatml", "--lora-rank", 8, "--learning-rate", 1e-3, "--too-long", "skip", "--out", out / "lora"]
pellucid("sft", "--dataset", out / "pairs.jsonl", "--init-from", out / "base", *tuned)
pellucid("export", out / "lora", "--out", out / "merged")
pellucid("export", out / "merged", "--out", out / "small", "--precision", "int8")
pellucid("eval", out / "base", out / "merged", out / "small", "--choices", out / "questions.jsonl")
pellucid("chat", out / "small", "--weights", "int8", "--tokens", 40, say=f"{ASK}{pairs[0][0]}")
