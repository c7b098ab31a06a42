"""Generation with a cache: equal to the full forward, exact at the edge of the context, the same over turns."""

from __future__ import annotations

import numpy as np
import pytest

from pellucid.base.errors import ConfigError, DataError, ShapeError
from pellucid.generate import Decoder, Sampler, generate, stream
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.tape import no_grad


def small(**changes: object) -> TransformerLM:
    options = {"d_model": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "max_seq_len": 32, "seed": 3} | changes
    return TransformerLM(TransformerConfig(40, **options))  # type: ignore[arg-type]


MODELS = {
    "llama": {},
    "interleaved": {"rope_interleaved": True, "tie_embeddings": False},
    "gpt2": {"norm": "layernorm", "positions": "learned", "activation": "gelu", "biases": True, "n_kv_heads": None},
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> TransformerLM:
    return small(**MODELS[request.param])


def test_cached_decoding_equals_the_full_forward(model: TransformerLM) -> None:
    ids = np.random.default_rng(0).integers(0, 40, (2, 20))
    with no_grad():
        full = model(ids).numpy()
        caches = model.new_caches(batch=2)
        parts = [model.forward_cached(ids[:, a:b], caches).numpy() for a, b in ((0, 7), (7, 8), (8, 15), (15, 20))]
    np.testing.assert_allclose(np.concatenate(parts, axis=1), full, atol=2e-6, rtol=1e-4)


def test_generation_equals_argmax_of_the_full_forward(model: TransformerLM) -> None:
    prompt = [5, 1, 30]
    found = generate(model, prompt, max_new_tokens=12, sampler=Sampler.greedy())
    ids = list(prompt)
    with no_grad():
        for _ in range(12):
            ids.append(int(np.argmax(model(ids).numpy()[0, -1])))
    assert found == ids[3:]


def test_the_context_can_be_filled_exactly() -> None:
    model = small()
    assert len(generate(model, [1], max_new_tokens=32, sampler=Sampler.greedy())) == 32
    with pytest.raises(DataError) as error:
        generate(model, [1], max_new_tokens=33, sampler=Sampler.greedy())
    assert str(error.value) == (
        "generate: longer than the context; got 1 prompt tokens and 33 new ones, expected at most 33 together. "
        "hint: shorten the prompt or ask for fewer new tokens"
    )


def test_the_decoder_fills_the_context_exactly_and_stays_usable() -> None:
    decoder = Decoder(small())
    decoder.feed([1])
    for _ in range(32):
        decoder.next(Sampler.greedy())
    assert len(decoder.history) == 33
    assert decoder.room == 0
    with pytest.raises(DataError, match="the context is full; got 33 tokens, expected at most 32 to continue from"):
        decoder.next(Sampler.greedy())
    with pytest.raises(DataError, match="longer than the context; got 34 tokens, expected at most 32"):
        decoder.feed([1])
    assert len(decoder.history) == 33
    decoder.reset()
    decoder.feed([1])
    assert decoder.next(Sampler.greedy()) == generate(small(), [1], max_new_tokens=1, sampler=Sampler.greedy())[0]


def test_two_turns_equal_one(model: TransformerLM) -> None:
    decoder = Decoder(model)
    decoder.feed([3, 4])
    first = [decoder.next(Sampler.greedy()) for _ in range(4)]
    decoder.feed([])
    decoder.feed([7, 8, 9])
    second = [decoder.next(Sampler.greedy()) for _ in range(4)]
    joined = [3, 4, *first, 7, 8, 9]
    assert generate(model, joined, max_new_tokens=4, sampler=Sampler.greedy()) == second
    assert decoder.history == (*joined, *second)


def test_only_new_tokens_are_read() -> None:
    decoder = Decoder(small())
    decoder.feed([1, 2, 3])
    decoder.next(Sampler.greedy())
    assert decoder.caches[0].length == 3
    decoder.feed([4])
    decoder.next(Sampler.greedy())
    assert decoder.caches[0].length == 5


def test_next_before_feed_is_an_error() -> None:
    with pytest.raises(DataError, match=r"^Decoder\.next: nothing to continue\. hint: feed a prompt first$"):
        Decoder(small()).next(Sampler.greedy())


def test_a_refused_feed_changes_nothing() -> None:
    decoder = Decoder(small())
    decoder.feed([1])
    for bad in ([2, 40], [-1], [1] * 32):
        with pytest.raises(DataError):
            decoder.feed(bad)
    assert decoder.history == (1,)


def test_on_token_ends_the_generation_and_keeps_the_id() -> None:
    model, seen = small(), []

    def watch(token: int) -> bool:
        seen.append(token)
        return len(seen) < 3

    found = generate(model, [1], max_new_tokens=20, sampler=Sampler.greedy(), on_token=watch)
    assert found == seen
    assert len(found) == 3


def test_the_stream_checks_before_the_first_token() -> None:
    with pytest.raises(DataError, match=r"^generate: the prompt is empty\. hint: start from at least one id$"):
        stream(small(), [], max_new_tokens=1, sampler=Sampler.greedy())
    with pytest.raises(DataError, match="max_new_tokens is negative; got -1"):
        stream(small(), [1], max_new_tokens=-1, sampler=Sampler.greedy())


def test_dropout_is_off_while_generating_and_on_again_after() -> None:
    model = small(dropout=0.5)
    model.train()
    a = generate(model, [1], max_new_tokens=8, sampler=Sampler.greedy())
    assert a == generate(model, [1], max_new_tokens=8, sampler=Sampler.greedy())
    assert model.training
    assert model.model.layers[0].self_attn.training


def test_one_cache_a_layer() -> None:
    model = small()
    with pytest.raises(ConfigError, match="not one cache a layer; got 1, expected 2"):
        model.forward_cached([1], model.new_caches()[:1])


@pytest.mark.parametrize("ids", [[1, 1.7], "ab", [True], [float("nan")], np.zeros((2, 2), int), np.ones(2)])
def test_ids_that_are_no_integers_are_refused(ids: object) -> None:
    decoder = Decoder(small())
    decoder.feed([3])
    with pytest.raises(DataError, match=r"^Decoder.feed: ids are not integers; got \w+, expected an integer type$"):
        decoder.feed(ids)  # type: ignore[arg-type]
    assert decoder.history == (3,)


def test_following_other_ids_reads_from_the_first_difference(model: TransformerLM) -> None:
    decoder = Decoder(model)
    assert decoder.follow([3, 4, 5, 6]) == 0
    first = decoder.next(Sampler.greedy())
    for ids, kept in (
        ([3, 4, 5, 6, first, 9], 4),
        ([3, 4, 8, 6], 2),
        ([3, 4, 8, 6], 3),  # the last one is read again: the next token comes from it
        ([3, 4], 1),
        ([7], 0),
        ([7, 1, 2], 0),  # nothing was drawn behind the 7, so it was never read
    ):
        assert decoder.follow(ids) == kept
        assert decoder.history == tuple(ids)
        if ids != [7]:
            assert [decoder.next(Sampler.greedy())] == generate(model, ids, max_new_tokens=1, sampler=Sampler.greedy())
    assert decoder.follow([]) == 0
    assert decoder.history == ()
    assert decoder.caches[0].length == 0


def test_a_cache_repeats_one_text_over_a_batch(model: TransformerLM) -> None:
    one, two = model.new_caches(1, 4), model.new_caches(2, 6)
    with no_grad():
        model.forward_cached([3, 4, 5], one)
        for cache, source in zip(two, one, strict=True):
            cache.repeat(source)
        found = model.forward_cached([[6, 7], [8, 9]], two).numpy()
        full = model([[3, 4, 5, 6, 7], [3, 4, 5, 8, 9]]).numpy()[:, 3:]
    np.testing.assert_allclose(found, full, atol=2e-6, rtol=1e-4)
    with pytest.raises(ShapeError, match=r"^KVCache: can't repeat several texts; got 2, expected 1$"):
        one[0].repeat(two[0])
    with pytest.raises(ShapeError, match=r"^KVCache: the context is full; got 3 positions, expected at most 2$"):
        model.new_caches(2, 2)[0].repeat(one[0])


def test_a_refused_follow_changes_nothing() -> None:
    decoder = Decoder(small())
    decoder.feed([1, 2])
    decoder.next(Sampler.greedy())
    before = decoder.history
    with pytest.raises(DataError, match=r"^Decoder.follow: id outside the vocabulary; got 40, expected 0 to 39$"):
        decoder.follow([1, 40])
    with pytest.raises(
        DataError, match=r"^Decoder.follow: longer than the context; got 33 tokens, expected at most 32"
    ):
        decoder.follow([1] * 33)
    assert decoder.history == before
    assert decoder.caches[0].length == 2
