"""``tokenizer.json``: its tokens as bytes, and its encoder without special tokens."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from flarecore.errors import ConfigError, ModelFileError, UnsupportedError
from flarecore.tokenizer.byte_level_bpe import spell, why_no_text
from flarecore.tokenizer.vocabulary import NORMAL, UNUSED, USER_DEFINED, Vocabulary

__all__ = ["JsonBpe", "TokenizerJson"]

_MAX_TOKENS = 1 << 24
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_FLAGS = ("special", "lstrip", "rstrip", "single_word")


class TokenizerJson:
    """The parsed file, checked: a BPE model, its added tokens and the stages around it.

    Parameters
    ----------
    values : mapping
        The file's object; it is not changed.
    where : str
        The file, for messages.

    Raises
    ------
    ModelFileError
        The file is malformed.
    UnsupportedError
        It is no BPE, or has an option that is not computed here; the message names it.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where
        self.model: Mapping[str, Any] = self._object(values, "model")
        # Old files do not name the kind; only BPE has merges.
        kind = self.model.get("type", "BPE" if "merges" in self.model else None)
        if kind != "BPE":
            raise UnsupportedError(f"{where}: model.type {kind!r:.40} is not supported; supported: "
                                   "BPE, byte-level or with byte fallback")
        for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
            if self.model.get(key):
                raise UnsupportedError(
                    f"{where}: model.{key} {self.model[key]!r:.40} is not supported")
        self._ids: dict[str, int] = {}
        self._texts: dict[int, str] = {}
        self.size = 0
        self._added: dict[int, dict[str, Any]] = {}
        vocab = self._object(self.model, "vocab")
        for text, index in vocab.items():
            self._take(text, index)
        for token in self._list(values, "added_tokens"):
            if not isinstance(token, Mapping):
                raise ModelFileError(f"{where}: added_tokens must hold objects, got {token!r:.80}")
            self.add(token.get("id"), token)
        if not self._texts:
            raise ModelFileError(f"{where}: the vocabulary is empty")

    def _object(self, values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        value = values.get(key)
        if not isinstance(value, Mapping):
            raise ModelFileError(f"{self.where}: {key} must be an object, it is {value!r:.80}")
        return value

    def _list(self, values: Mapping[str, Any], key: str) -> list[Any]:
        value = values.get(key)
        if value is not None and not isinstance(value, list):
            raise ModelFileError(f"{self.where}: {key} must be a list, it is {value!r:.80}")
        return value or []

    def _take(self, text: Any, index: Any) -> None:
        if not isinstance(text, str) or any(0xD800 <= ord(c) <= 0xDFFF for c in text):
            raise ModelFileError(f"{self.where}: the token {text!r:.80} is not Unicode text")
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < _MAX_TOKENS:
            raise ModelFileError(f"{self.where}: the token {text!r:.80} has the id {index!r:.40}, "
                                 f"expected 0 to {_MAX_TOKENS - 1}")
        if self._ids.setdefault(text, index) != index:
            raise ModelFileError(f"{self.where}: the token {text!r:.80} has the ids "
                                 f"{self._ids[text]} and {index}")
        if self._texts.setdefault(index, text) != text:
            raise ModelFileError(f"{self.where}: the id {index} stands for {text!r:.80} and "
                                 f"{self._texts[index]!r:.80}")
        self.size = max(self.size, index + 1)

    def add(self, index: Any, token: Mapping[str, Any]) -> None:
        """An added token; one that is known only gets what the new entry says besides."""
        self._take(token.get("content"), index)
        known = self._added.setdefault(index, {
            "id": index, "content": token["content"],
            "normalized": token.get("normalized", not token.get("special")) is True,
            **{flag: token.get(flag) is True for flag in _FLAGS}})
        known["special"] |= token.get("special") is True

    def mark_special(self, ids: Iterable[int]) -> None:
        """Tokens that another file declares special."""
        for index in ids:
            token = {"id": index, "content": self._texts[index], "normalized": False}
            self._added.setdefault(index, token)["special"] = True

    def limit(self, vocab_size: int | None) -> None:
        """Sets the number of ids: the rows of the embedding.

        Raises ModelFileError if a token of the model itself has no row. Added ones are left out.
        """
        if vocab_size is None:
            return
        beyond = [i for i in self._texts if i >= vocab_size]
        for index in beyond:
            if index not in self._added:
                raise ModelFileError(
                    f"{self.where}: the token {self._texts[index]!r:.80} has the id {index}, the "
                    f"model's embedding has {vocab_size} rows")
            del self._ids[self._texts.pop(index)], self._added[index]
        self.size = vocab_size

    def find(self, text: str | None) -> int | None:
        return None if text is None else self._ids.get(text)

    def text(self, index: int) -> str:
        return self._texts.get(index, "")

    def special_ids(self) -> frozenset[int]:
        """Special tokens, and ids that no token has: they stand for no text either."""
        gaps = {i for i in range(self.size) if i not in self._texts}
        return frozenset(gaps | {i for i, token in self._added.items() if token.get("special")})

    def flagged(self, flag: str) -> frozenset[int]:
        """Special tokens with this flag."""
        return frozenset(i for i, t in self._added.items() if t.get("special") and t.get(flag))

    def prompt_prefix(self) -> list[int]:
        """Tokens that the post-processor puts before a text."""
        prefix: list[int] = []
        for stage in _stages(self.values.get("post_processor"), "processors"):
            if stage.get("type") == "ByteLevel":
                continue
            if stage.get("type") != "TemplateProcessing":
                raise UnsupportedError(f"{self.where}: post_processor {stage.get('type')!r:.40} is "
                                       "not supported; supported: TemplateProcessing")
            for piece in self._list(stage, "single"):
                token = piece.get("SpecialToken") if isinstance(piece, Mapping) else None
                if not isinstance(token, Mapping):
                    break
                index = self._ids.get(str(token.get("id")))
                if index is None:
                    raise ModelFileError(f"{self.where}: post_processor names the token "
                                         f"{token.get('id')!r:.80}, which there is not")
                prefix.append(index)
        return prefix

    def token_table(self) -> list[bytes]:
        """Exact bytes of every id, by the decoder's stages; added tokens: their text."""
        tokens = [self.text(i) for i in range(self.size)]
        types = np.full(self.size, NORMAL, np.int32)
        types[[i for i in range(self.size) if i not in self._texts]] = UNUSED
        types[sorted(self._added)] = USER_DEFINED
        stages = list(_stages(self.values.get("decoder"), "decoders"))
        kinds = [stage.get("type") for stage in stages]
        if kinds == ["ByteLevel"]:
            return spell(Vocabulary(tokens, types, [], {}))[0]
        fixed = set(np.flatnonzero(types != NORMAL).tolist())
        blanks, has_bytes = self._blanks(stages)
        table = []
        for i, token in enumerate(tokens):
            if i in fixed:
                table.append(token.encode())
            elif has_bytes and (byte := _byte(token)) is not None:
                table.append(byte)
            else:
                for old, new in blanks:
                    token = token.replace(old, new)
                table.append(token.encode())
        return table

    def _blanks(self, stages: list[Mapping[str, Any]]) -> tuple[list[tuple[str, str]], bool]:
        """What the decoder replaces in tokens, and whether there are byte tokens."""
        blanks: list[tuple[str, str]] = []
        has_bytes = False
        for stage in stages:
            kind = stage.get("type")
            pattern = stage.get("pattern")
            if kind == "Replace" and isinstance(pattern, Mapping) and pattern.get("String"):
                blanks.append((str(pattern["String"]), str(stage.get("content", ""))))
            elif kind == "Metaspace":
                blanks.append((str(stage.get("replacement") or "\u2581"), " "))
            elif kind == "ByteFallback":
                has_bytes = True
            elif kind not in ("Fuse", "Strip"):  # these change whole texts, not tokens
                raise UnsupportedError(f"{self.where}: decoder {kind!r:.40} is not supported")
        if not blanks:
            raise UnsupportedError(f"{self.where}: the decoder does not say how tokens become "
                                   "text; supported: ByteLevel, Metaspace, Replace, ByteFallback")
        return blanks, has_bytes

    def plain(self) -> dict[str, Any]:
        """The file for encoding plain text: no special token, and nothing put around a text."""
        special = {token["content"] for token in self._added.values() if token.get("special")}
        unknown = self.model.get("unk_token")
        for index, token in self._added.items():
            if token.get("special") and token.get("single_word"):
                raise UnsupportedError(f"{self.where}: the special token {self.text(index)!r:.80} "
                                       "with single_word is not supported")
        vocab = {t: i for t, i in self._ids.items() if t not in special or t == unknown}
        merges = [m for m in map(self._merge, self._list(self.model, "merges"))
                  if special.isdisjoint((*m, "".join(m)))]
        added = [token for i, token in sorted(self._added.items()) if not token.get("special")]
        return dict(self.values, added_tokens=added, post_processor=None, truncation=None,
                    padding=None, model=dict(self.model, type="BPE", vocab=vocab, merges=merges))

    def _merge(self, merge: Any) -> tuple[str, str]:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not (isinstance(parts, list) and len(parts) == 2
                and all(isinstance(part, str) for part in parts)):
            raise ModelFileError(f"{self.where}: model.merges holds {merge!r:.80}; a merge is two "
                                 "tokens")
        return parts[0], parts[1]


class JsonBpe:
    """Plain text to token ids, by the library that wrote the file. Thread-safe.

    Parameters
    ----------
    source : TokenizerJson

    Raises
    ------
    ModelFileError
        The library refuses the file.

    Attributes
    ----------
    token_table : list of bytes, (vocab_size,)
    """

    def __init__(self, source: TokenizerJson) -> None:
        self.token_table = source.token_table()
        plain = source.plain()
        self._first = _build(plain, source.where)
        self._later = self._first
        if _without_prefix(later := copy.deepcopy(plain.get("pre_tokenizer"))):
            self._later = _build(dict(plain, pre_tokenizer=later), source.where)
        for token in plain["added_tokens"]:
            if self._first.token_to_id(token["content"]) != token["id"]:
                raise ModelFileError(f"{source.where}: the added token {token['content']!r:.80} "
                                     f"cannot have the id {token['id']}")

    def encode(self, text: str, at_start: bool = True) -> list[int]:
        """Ids of plain text. Raises ConfigError for a lone surrogate."""
        tokenizer = self._first if at_start else self._later
        try:
            ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        except (TypeError, UnicodeEncodeError) as error:
            raise ConfigError(why_no_text(text)) from error
        return ids


def _build(values: Mapping[str, Any], where: str) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(json.dumps(values))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # it raises bare Exception; panics are not even that
        raise ModelFileError(f"{where}: not a usable tokenizer: {str(error)[:300]}") from error


def _stages(stage: Any, key: str) -> Iterator[Mapping[str, Any]]:
    """The stages of a sequence, which may be nested, in order."""
    open_stages = [stage]
    while open_stages:
        stage = open_stages.pop(0)
        if isinstance(stage, Mapping) and isinstance(inner := stage.get(key), list):
            open_stages[:0] = inner
        elif isinstance(stage, Mapping):
            yield stage


def _without_prefix(stage: Any) -> bool:
    """Takes the blank out that only the beginning of a text gets; whether there was one."""
    found = False
    for part in _stages(stage, "pretokenizers"):
        if part.get("type") == "Metaspace" and part.get("prepend_scheme") == "first":
            part["prepend_scheme"] = "never"  # type: ignore[index]
            found = True
    return found


def _byte(token: str) -> bytes | None:
    """``<0x1F>`` -> that byte."""
    match = _BYTE.fullmatch(token)
    return bytes((int(match[1], 16),)) if match else None
