"""The benchmark cases on tiny models: they run, compare before they time, and count the work they claim."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import decode, experts, gemm, packing, text, train, xor
from benchmarks.options import Options, Refused
from pellucid.checkpoint import write_gguf
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.text import ByteTokenizer

TINY = TransformerConfig(
    61, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=8, d_ff=48, max_seq_len=64, precision="float32"
)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(train.MODELS, "tiny", TINY)
    return train.TrainOptions(iterations=2, quick=True, pause=0.0, model="tiny", shape=(2, 9))


def test_the_models_have_the_sizes_they_are_known_by():
    counts = {name: config.parameter_counts().total for name, config in train.MODELS.items()}
    assert counts == {"100m": 101_671_680, "4m": 4_000_000}


def test_initial_weights_are_those_of_the_model():
    parameters = dict(TransformerLM(TINY).named_parameters())
    weights = train.initial_weights(TINY, seed=0)
    assert {name: w.shape for name, w in weights.items()} == {name: p.shape for name, p in parameters.items()}


def test_a_training_step_is_checked_and_timed(tiny):
    found = train.run(tiny)
    steps = {row.dtype: row for row in found if row.what == "step"}
    assert set(steps) == {"float32", "bfloat16"}
    assert all(row.count == 2 and 0 < row.more["share"] < 1 and row.more["tokens/s"] > 0 for row in steps.values())


def test_a_wrong_step_is_not_timed(tiny, monkeypatch):
    monkeypatch.setattr(train.Pellucid, "step", lambda self, ids: 1.0 if self.model.device.name == "cpu" else 2.0)
    with pytest.raises(Refused, match="wrong kernels are not timed"):
        train.run(tiny)


def test_products_are_checked_and_timed(tiny, monkeypatch):
    monkeypatch.setattr(gemm, "cases", lambda: gemm.layer("small", 40, 33, 20))
    found = gemm.run(tiny)
    assert {row.dtype for row in found} == {"float32", "bfloat16"}
    assert all(row.p50 > 0 and 0 < row.more["share"] <= 1 for row in found)
    monkeypatch.setattr(
        gemm,
        "_ours",
        lambda a, b, dtype, turned: lambda: gemm.matmul(*(gemm.cpu.upload(h, dtype) for h in (a + 1, b.T))),
    )
    with pytest.raises(Refused, match="small forward of pellucid in float32 is wrong"):
        gemm.run(tiny)


def test_the_operations_of_a_step_add_up_to_it():
    side = train.Pellucid(TINY, train.initial_weights(TINY, seed=0))
    lines = train.per_operation(side, train.random_ids(TINY, (1, 8))).splitlines()[2:]
    shares = [float(line.rsplit("|", 2)[1].strip(" %")) for line in lines]
    assert sum(shares) == pytest.approx(100, abs=0.05 * len(shares))


def test_the_dense_twin_of_a_mixture_has_its_active_size():
    counts, twin = (c.parameter_counts() for c in (experts.EXPERTS, experts.dense_twin(experts.EXPERTS)))
    assert str(counts) == "55.2M total, 35.7M active"
    routers = 6 * 8 * 512
    assert twin.total == twin.active == counts.active - routers


def test_a_step_of_a_mixture_is_checked_and_timed(tiny, monkeypatch):
    monkeypatch.setattr(experts, "EXPERTS", replace(TINY, experts=4, moe_layers=(1,), shared_expert=True))
    found = experts.run(tiny)
    assert [(row.by, row.dtype) for row in found] == [
        (by, dtype) for dtype in ("float32", "bfloat16") for by in ("experts", "dense")
    ]
    assert all(row.more["over dense"] > 0 for row in found if row.by == "experts")


def test_decoding_and_prefill_agree_with_the_definition(tiny, monkeypatch, tmp_path):
    monkeypatch.setattr(decode, "MODEL", TINY)
    monkeypatch.setattr(decode, "CONTEXT", 12)
    monkeypatch.setattr(decode, "BLOCK", 3)
    monkeypatch.setattr(decode, "PROMPT", 16)
    monkeypatch.setattr(decode, "bandwidth", lambda where: 1e10)
    assert {row.dtype for row in decode.run_decode(tiny) if row.what == "token"} == set(train.WIDTHS)
    assert {row.dtype for row in decode.run_prefill(tiny) if row.what == "prompt"} == set(train.WIDTHS)
    file = tmp_path / "tiny.gguf"
    write_gguf(file, dict(TransformerLM(TINY).named_parameters()), TINY)
    real = replace(tiny, gguf=file, widths=("int8",))
    assert [row.shape for row in decode.run_decode(real) if row.what == "token"] == ["tiny, after 12"]
    assert [row.shape for row in decode.run_prefill(real) if row.what == "prompt"] == ["tiny, 16 tokens"]


def test_the_floor_of_decoding_counts_each_weight_once_at_the_width_it_is_held_in():
    norms = TINY.parameter_counts().norms
    for width, size in (("float32", 4), ("bfloat16", 2), ("int8", 1)):
        model = TransformerLM(TINY)
        model.hold_weights(width)
        assert decode.weight_bytes(model) == size * (TINY.parameter_counts().total - norms)


def test_xor_starts_at_the_loss_of_its_definition(monkeypatch):
    xor.check({"pellucid": xor.Pellucid(xor.initial_weights())})
    monkeypatch.setattr(xor, "TARGETS", np.zeros((4, 1), np.float32))
    wrong = xor.Pellucid(xor.initial_weights())
    monkeypatch.undo()
    with pytest.raises(Refused, match="xor: step 0"):
        xor.check({"pellucid": wrong})


LINES = [f"the {a} {b} of stone" for a in ("wind", "night", "sea") for b in ("went", "over", "and")] * 3


def test_tokenizers_are_checked_and_timed(tiny, monkeypatch):
    monkeypatch.setattr(text, "lines_of", lambda options, language: LINES)
    monkeypatch.setattr(text, "SIZE", 280)
    found = text.run(tiny)
    assert {(row.what, row.shape) for row in found} == {
        (f"{what} {kind}", f"{language}, 280 ids")
        for what in ("train", "encode")
        for kind in text.KINDS
        for language in text.TEXTS
    }
    assert all(row.more["characters/token"] > 1 and row.p50 > 0 for row in found)


def test_a_tokenizer_that_loses_text_is_not_timed():
    right = ByteTokenizer()

    class Lossy(ByteTokenizer):
        def _bytes(self, ids):
            return super()._bytes(ids).replace(b"s", b"")

    class Mixed(ByteTokenizer):
        def _encode(self, text):
            return super()._encode(text)[::-1]

    text.check(right, LINES, right)
    with pytest.raises(Refused, match="tokenizers: byte does not give back 'the wind went of stone'"):
        text.check(Lossy(), LINES, right)
    with pytest.raises(Refused, match="tokenizers: in a batch, byte has other ids for 'the wind went of stone'"):
        text.check(Mixed(), LINES, right)
    with pytest.raises(Refused, match="tokenizers: trained twice, byte is not the same"):
        text.check(right, LINES, ByteTokenizer(special=["<a>"]))


def test_packed_rows_are_checked_and_timed(corpus_folder, monkeypatch):
    monkeypatch.setattr(packing, "FILES", ("seed_tasks.jsonl",))
    monkeypatch.setattr(packing, "MODEL", replace(packing.MODEL, d_model=16, n_layers=1, n_heads=2, n_kv_heads=1))
    found = packing.run(Options(quick=True, iterations=1, data=corpus_folder))
    assert [row.by for row in found] == ["packed", "padded", "longest"]
    assert all(row.p50 > 0 for row in found)
