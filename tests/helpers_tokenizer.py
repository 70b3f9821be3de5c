"""For tokenizer tests: mixed strings, and small vocabularies trained on them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np

from flarecore.model_files import find_model
from flarecore.tokenizer import Tokenizer
from flarecore.tokenizer.pretokenizers import BYTE_ALPHABET, PRETOKENIZERS

NORMAL, UNKNOWN, CONTROL, USER, UNUSED = 1, 2, 3, 4, 5

# Each a list of parts that a string is put together from.
ALPHABETS: dict[str, list[str]] = {
    "english": ["The", "quick", "brown", "fox", "didn't", "jump;", "it's", "I'll", "WE'VE",
                "they're", "don't", "SHE'D", "naïve", "café"],
    "chinese": ["今天", "天气", "很好", "，", "。", "「", "」", "北京", "差旅", "报销", "龘",
                "３．１４"],
    "japanese, korean": ["こんにちは", "カタカナ", "한국어", "안녕", "・", "ー"],
    "emoji": ["😀", "👩‍👩‍👧", "🇨🇳", "❤️", "👍🏽", "🤷", "\U0001f9d1\U0001f3ff"],
    "code": ["def f(x):", "    return", "x[i+1]", "!=", "&&", "{}", "->", "//", "\\n",
             "#include", "$a"],
    "digits": ["1", "23", "456", "7890", "1,234.5", "²", "½", "٣", "Ⅷ", "२०", "0x1F", "1e-9"],
    "white space": [" ", "  ", "   ", "\t", "\t\t ", "\u00a0", "\u3000", "\u2003",
                    "\u200b", "\ufeff"],
    "newlines": ["\n", "\r\n", "\r", "\n\n", "\n \n", "\u2028", "\u0085", "\x0b", "\x0c"],
    "control": ["\x00", "\x01", "\x04", "\x1b[0m", "\x7f", "\x9f", "\x1c", "\x13"],
    "right to left": ["שלום", "עולם", "مرحبا", "بالعالم", "\u200f", "\u202b", "٪", "؟"],
    "combining": ["e\u0301", "n\u0303", "a\u0323\u0302", "\u0041\u030a", "\u1100\u1161",
                  "ก็", "क्षि"],
    "quotes": ["'", "''", "'s", "'S", "’s", '"', "`", "'ll", "'LL", "'re", "'x", "'9"],
    "looks special": ["<", "|", "<|", "|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "[INST]"],
    "rare planes": ["\U00010348", "\U0001d54f", "\U000e0041", "\U0002070e"],
}  # fmt: skip


def mixed_strings(count: int, seed: int) -> list[str]:
    """Seeded strings of 0 to 24 parts from one to four alphabets, with and without spaces."""
    rng = np.random.default_rng(seed)
    names = list(ALPHABETS)
    strings = []
    for _ in range(count):
        chosen = [names[i] for i in rng.integers(len(names), size=int(rng.integers(1, 5)))]
        glue = ["", " ", " ", "  ", "\n"][int(rng.integers(5))]
        parts = []
        for _ in range(int(rng.integers(0, 25))):
            alphabet = ALPHABETS[chosen[int(rng.integers(len(chosen)))]]
            parts.append(alphabet[int(rng.integers(len(alphabet)))])
        strings.append(glue.join(parts))
    return strings


@cache
def smollm2() -> Tokenizer:
    return Tokenizer.from_gguf(find_model("smollm2-135m"))


@cache
def trained(pre: str) -> tuple[list[str], list[str]]:
    """Tokens and merges of a byte-level BPE trained on mixed strings under one pre-tokeniser."""
    from tokenizers import Tokenizer as Library
    from tokenizers.models import BPE
    from tokenizers.trainers import BpeTrainer

    library = Library(BPE())
    library.pre_tokenizer = PRETOKENIZERS[pre].build()
    trainer = BpeTrainer(
        vocab_size=1500, initial_alphabet=list(BYTE_ALPHABET), show_progress=False, min_frequency=2
    )
    library.train_from_iterator([*mixed_strings(400, seed=5), *ALPHABETS["english"] * 9], trainer)
    model = json.loads(library.to_str())["model"]
    merges = [" ".join(m) if isinstance(m, list) else m for m in model["merges"]]
    return sorted(model["vocab"], key=model["vocab"].__getitem__), merges


def toy(pre: str = "gpt-2", **extra: Any) -> dict[str, Any]:
    """GGUF metadata of a small tokenizer: ``token_type``, ``extra_tokens``, other keys."""
    tokens, merges = trained(pre)
    added = extra.pop("extra_tokens", [])
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens + [text for text, _ in added],
        "tokenizer.ggml.token_type": np.array([NORMAL] * len(tokens) + [kind for _, kind in added]),
        "tokenizer.ggml.merges": merges,
    }
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in extra.items()}


def conversation(*contents: str, system: str | None = None) -> list[dict[str, Any]]:
    """Messages of a user and an assistant in turn."""
    head = [] if system is None else [{"role": "system", "content": system}]
    turns = [
        {"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)
    ]
    return head + turns


# A template with what real ones for reasoning models do.
REASONING = """{%- macro show(text, tag='') -%}
    {{ '<' ~ tag ~ '>' ~ text ~ '</' ~ tag ~ '>' if tag else text }}
{%- endmacro %}
{%- for m in messages if m.content is not none %}
{%- set text = m.content %}
{%- if m.role == 'assistant' and '</think>' in text %}
    {%- set text = text.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
<|im_start|>{{ m.role }}
{{ show(text, 'answer') if m.role == 'assistant' else show(text) }}<|im_end|>
{% endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}{% if loop.index > 3 %}{% break %}{% endif %}[{{ m | tojson }}]{% endfor %}
"""
