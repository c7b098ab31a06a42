"""Chat templates by name, as the Jinja that goes into a model's files when it is taught one.

`transcript` needs nothing of a vocabulary but text, and ends an answer with the end-of-text token where there is one;
`chatml` needs its two marks among the special tokens. `ChatML` and `Transcript` are the same in Python.
"""

from __future__ import annotations

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m['content'] }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

TRANSCRIPT = (
    "{% for m in messages %}"
    "{% if m['role'] == 'system' and loop.first %}{{ m['content'] | trim }}\n\n"
    "{% elif m['role'] == 'user' %}User: {{ m['content'] | trim }}\n"
    "{% elif m['role'] == 'assistant' %}Assistant:"
    "{% generation %} {{ m['content'] | trim }}{{ eos_token | default('') }}\n{% endgeneration %}"
    "{% else %}{{ raise_exception('user or assistant, after at most one system') }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)

NAMED = {"chatml": CHATML, "transcript": TRANSCRIPT}
