"""The tokenizer of a checkpoint: ``tokenizer.json`` and the files beside it.

The library that wrote ``tokenizer.json`` encodes plain text, from a copy of the file without its
special tokens, so that no text can produce one. Special tokens are found by
:class:`flarecore.tokenizer.Tokenizer`, as those of GGUF files are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flarecore.checkpoint.json_file import Section, read_json, read_text
from flarecore.errors import ModelFileError, UnsupportedError
from flarecore.tokenizer.parts import TokenizerParts
from flarecore.tokenizer.tokenizer_json import JsonBpe, TokenizerJson
from flarecore.tokenizer.vocabulary import END_TEXTS

__all__ = ["checkpoint_parts"]

_MAX_TEMPLATE_BYTES = 4 << 20
_NAMES = ("bos", "eos", "unk", "pad", "sep", "cls", "mask")


def checkpoint_parts(
    directory: Path, vocab_size: int | None, config: Mapping[str, Any]
) -> TokenizerParts:
    """See :meth:`flarecore.tokenizer.Tokenizer.from_directory`."""
    path = directory / "tokenizer.json"
    if not path.is_file() and (directory / "tokenizer.model").is_file():
        raise UnsupportedError(
            f"{directory}: tokenizer.model without tokenizer.json is not supported; save the "
            "tokenizer with transformers once, which writes tokenizer.json"
        )
    settings = _Settings(directory, config)
    source = TokenizerJson(read_json(path), str(path))
    for index, token in settings.added_tokens():
        source.add(index, token)
    declared = {n: i for n in _NAMES if (i := source.find(settings.token(n))) is not None}
    source.mark_special([*declared.values(), *settings.more_special(source)])
    source.limit(vocab_size)
    encoder = JsonBpe(source)
    size = len(encoder.token_table)
    declared = {name: i for name, i in declared.items() if i < size}
    prefix = source.prompt_prefix()
    bos = declared.get("bos", prefix[0] if prefix else settings.bos_of_config(size))
    if prefix not in ([], [bos]):
        raise UnsupportedError(
            f"{path}: post_processor puts the tokens {prefix} before every prompt; supported is "
            "a begin-of-sequence token, or none"
        )
    special = source.special_ids()
    ends = {*settings.end_ids(size), *(i for i in special if source.text(i) in END_TEXTS)}
    if "eos" in declared:
        ends.add(declared["eos"])
    return TokenizerParts(
        encoder,
        special,
        frozenset(ends),
        bos,
        settings.adds_bos(bool(prefix)),
        settings.chat_template(),
        template_ids=declared,
        strips_left=source.flagged("lstrip"),
        strips_right=source.flagged("rstrip"),
    )


def _section(path: Path) -> Section:
    """A JSON file that need not be there."""
    return Section(read_json(path) if path.exists() else {}, str(path), {})


class _Settings:
    """What the files beside ``tokenizer.json`` say. Getters raise ModelFileError."""

    def __init__(self, directory: Path, config: Mapping[str, Any]) -> None:
        self._directory = directory
        self._tokenizer = _section(directory / "tokenizer_config.json")
        self._generation = _section(directory / "generation_config.json")
        self._config = Section(config, str(directory / "config.json"), {})

    def token(self, name: str) -> str | None:
        """Text of ``bos_token`` and so on."""
        value = self._tokenizer.values.get(f"{name}_token")
        if isinstance(value, Mapping):
            value = value.get("content")
        if value is not None and not isinstance(value, str):
            raise self._fail(self._tokenizer, f"{name}_token", value, "a string")
        return value

    def added_tokens(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """``added_tokens_decoder``: id -> token, as ``added_tokens`` of tokenizer.json has it."""
        key = "added_tokens_decoder"
        tokens = self._tokenizer.values.get(key) or {}
        if not isinstance(tokens, Mapping):
            raise self._fail(self._tokenizer, key, tokens, "an object")
        for index, token in tokens.items():
            if not (index.isascii() and index.isdigit() and len(index) < 10):
                raise self._fail(self._tokenizer, key, index, "ids as keys")
            if not isinstance(token, Mapping):
                raise self._fail(self._tokenizer, f"{key}[{index}]", token, "an object")
            yield int(index), token

    def more_special(self, source: TokenizerJson) -> Iterator[int]:
        """Ids of further special tokens."""
        for key in ("additional_special_tokens", "extra_special_tokens"):
            tokens = self._tokenizer.values.get(key) or []
            for token in tokens.values() if isinstance(tokens, Mapping) else tokens:
                text = token.get("content") if isinstance(token, Mapping) else token
                if isinstance(text, str) and (index := source.find(text)) is not None:
                    yield index

    def adds_bos(self, by_processor: bool) -> bool:
        value = self._tokenizer.values.get("add_bos_token")
        return value if isinstance(value, bool) else by_processor

    def bos_of_config(self, size: int) -> int | None:
        """``bos_token_id`` of the model, where the tokenizer names none."""
        for file in (self._generation, self._config):
            for index in _ids(file, "bos_token_id", size):
                return index
        return None

    def end_ids(self, size: int) -> set[int]:
        """``eos_token_id`` of generation and model: one or several."""
        files = [self._generation, self._config]
        if isinstance(text := self._config.values.get("text_config"), Mapping):
            files.append(Section(text, self._config.where, {}))
        return {i for file in files for i in _ids(file, "eos_token_id", size)}

    def chat_template(self) -> str | None:
        """A file of its own goes before the entry of tokenizer_config.json."""
        path = self._directory / "chat_template.jinja"
        if path.exists():
            return read_text(path, _MAX_TEMPLATE_BYTES)
        value = self._tokenizer.values.get("chat_template")
        if value is None and (path := self._directory / "chat_template.json").exists():
            value = read_json(path).get("chat_template")
        if isinstance(value, list):  # several, by name
            named = {t.get("name"): t.get("template") for t in value
                     if isinstance(t, Mapping) and isinstance(t.get("name"), str)}
            value = named.get("default")
        if value is not None and not isinstance(value, str):
            raise self._fail(self._tokenizer, "chat_template", value, "a string")
        return value

    @staticmethod
    def _fail(file: Section, key: str, value: Any, expected: str) -> ModelFileError:
        return ModelFileError(f"{file.where}: {key} is {value!r:.80}, expected {expected}")


def _ids(file: Section, key: str, size: int) -> list[int]:
    """One id, several or none; each must be a token."""
    value = file.values.get(key)
    found = [] if value is None else value if isinstance(value, list) else [value]
    for index in found:
        if isinstance(index, bool) or not isinstance(index, int) or not -1 <= index < size:
            raise ModelFileError(
                f"{file.where}: {key} is {value!r:.80}; the vocabulary has ids from 0 to {size - 1}"
            )
    return [index for index in found if index >= 0]
