"""Models in the formats of others: Hugging Face folders (`hub_*`) and GGUF files (`gguf_*`), read into a `ModelSource`
and written from a model.

`open_model` and the commands reach them through the table of formats in `checkpoint.open`.
"""

__all__: list[str] = []
