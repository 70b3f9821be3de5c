"""Sentence embeddings on the native kernels: MiniLM and other BERT-style encoders."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flarecore.errors import ConfigError, ModelFileError
from flarecore.model_files import find_model
from flarecore.quantization import Quantization, check_quantize
from flarecore.retrieval.encoder_files import EncoderFiles, read_encoder_files

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["SentenceEncoder"]

_BATCH_TEXTS = 256  # texts tokenised at a time
_SAMPLE_BYTES = 4096  # of each end of a tensor, for the fingerprint


class SentenceEncoder:
    """Texts to vectors of length 1. Made by :meth:`load`; safe to share between threads.

    A text's vector does not depend on the texts beside it or on the number of threads, bit for bit
    on one ISA level.

    Attributes
    ----------
    name : str
        The name it was loaded by; the folder's name for a path.
    dim : int
        Length of a vector.
    max_tokens : int
        Longest text in tokens, special tokens included; the rest of a longer text is left out, as
        sentence-transformers does.
    threads : int
        Threads of the native encoder.
    quantize : {"q4", "q8"} or None
        How its weights are quantised.
    fingerprint : str
        Equal for the same configuration, tokenizer, weights and `quantize`.
    """

    def __init__(
        self, name: str, files: EncoderFiles, threads: int, quantize: str | None = None
    ) -> None:
        from flarecore import _C  # type: ignore[attr-defined]

        self.name = name
        self.quantize = quantize
        self.dim: int = files.config["hidden_size"]
        self.max_tokens = files.max_tokens
        self._tokenizer = _load_tokenizer(files)
        token = getattr(self._tokenizer.model, "unk_token", None) or "<unk>"
        unknown = self._tokenizer.token_to_id(token)
        self._unknown_id: int = -1 if unknown is None else unknown
        self._special_ids = set(self._tokenizer.encode("").ids)
        self._native: Any = _C.Encoder(
            files.weights, **files.config, quantize=quantize or "none", num_threads=threads)
        if quantize is not None and all(t[2] == "none" for t in self._native.quantization()):
            raise ConfigError(f"quantize={quantize!r}: no matrix of {name} has rows of a multiple "
                              "of 32 values; load it without quantize")
        self.threads = int(self._native.num_threads)
        self.fingerprint = _fingerprint(files, quantize)

    @classmethod
    def load(
        cls, name_or_path: str | os.PathLike[str] = "minilm-l6-v2", *, threads: int | None = None,
        quantize: str | None = None
    ) -> SentenceEncoder:
        """An encoder by name or from a folder.

        Parameters
        ----------
        name_or_path : str or path
            See :func:`flarecore.model_files.find_model`. The folder holds ``config.json``,
            ``model.safetensors`` and ``tokenizer.json``; the files of sentence-transformers for
            pooling and length are followed if they are there.
        threads : int, optional
            All usable ones, at most 8, if None.
        quantize : {"q4", "q8"}, optional
            Quantises the matrices when they are packed, as :meth:`flarecore.Model.load` does, and
            multiplies with activations of 8 bits: less to read, and quicker from the CPU level
            avx2 on (the generic level is slower). ``"q8"`` finds nearly the same passages,
            ``"q4"`` loses more. Vectors are others then, so an index is searched with the encoder
            that made it; what the weights lose is in :attr:`quantization`. Matrices whose rows are
            no multiple of 32 stay float32.

        Raises
        ------
        ModelFileError
            Nothing of that name, or a file is missing, damaged or hostile.
        UnsupportedError
            Another architecture than flarecore runs.
        ConfigError
            `threads` is not an integer from 1 to 1024, `quantize` is unknown, or finds nothing to
            quantise.
        """
        from flarecore import _C  # type: ignore[attr-defined]

        check_quantize(quantize)
        if threads is None:
            threads = int(_C.default_encoder_threads())
        if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 1024:
            raise ConfigError(f"threads must be an integer from 1 to 1024, got {threads!r}")
        folder = find_model(name_or_path)
        is_path = not isinstance(name_or_path, str) or os.sep in name_or_path
        name = folder.resolve().name if is_path else str(name_or_path)
        return cls(name, read_encoder_files(folder), threads, quantize)

    @property
    def quantization(self) -> Quantization | None:
        """What `quantize` changed in the weights; None without it."""
        if self.quantize is None:
            return None
        return Quantization.from_tensors(self.quantize, self._native.quantization())

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """The vectors of some texts. The GIL is released while they are computed.

        Parameters
        ----------
        texts : sequence of str
            May hold empty strings. Halves of surrogate pairs are read as U+FFFD.

        Returns
        -------
        (len(texts), dim) float32
            Rows of length 1.

        Raises
        ------
        ConfigError
            `texts` is one string or holds something else than strings.
        """
        if isinstance(texts, (str, bytes)):
            raise ConfigError("encode: texts must be a list of strings; wrap a single one in []")
        for position, text in enumerate(texts):
            if not isinstance(text, str):
                raise ConfigError(
                    f"encode: text {position} must be a string, got {type(text).__name__}")
        if len(texts) <= _BATCH_TEXTS:
            return self._encode_batch(texts)
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        for begin in range(0, len(texts), _BATCH_TEXTS):
            batch = texts[begin : begin + _BATCH_TEXTS]
            vectors[begin : begin + len(batch)] = self._encode_batch(batch)
        return vectors

    def unknown_share(self, texts: Sequence[str]) -> float:
        """Which part of the texts the vocabulary has no token for: search cannot tell it apart.

        MiniLM knows English; of Chinese it reads most characters as one and the same ``[UNK]``. A
        script that it takes to pieces (Cyrillic, Arabic) counts as known.

        Parameters
        ----------
        texts : sequence of str

        Returns
        -------
        float
            In [0, 1], over the tokens that :meth:`encode` would use; 0 without any.
        """
        unknown = total = 0
        for text in texts:
            ids = self._token_ids(text)
            unknown += ids.count(self._unknown_id)
            total += len(ids) - sum(map(ids.count, self._special_ids))
        return unknown / total if total else 0.0

    def _encode_batch(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """(len(texts), dim) float32, with one call of the native encoder."""
        ids = [self._token_ids(text) for text in texts]
        flat = np.array(list(chain.from_iterable(ids)), dtype=np.int32)
        lengths = np.array([len(text_ids) for text_ids in ids if text_ids], dtype=np.int64)
        found: npt.NDArray[np.float32] = self._native.encode(flat, lengths)
        if len(found) == len(texts):
            return found
        # A tokenizer without [CLS] leaves "" empty: its vector is zero.
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        vectors[[bool(text_ids) for text_ids in ids]] = found
        return vectors

    def _token_ids(self, text: str) -> list[int]:
        if not text.isascii():  # which cannot hold half a surrogate pair
            text = _without_surrogates(text)
        # One by one: a short text is done before a pool of threads would have woken up.
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def __repr__(self) -> str:
        quantize = f", quantize={self.quantize!r}" if self.quantize else ""
        return f"SentenceEncoder({self.name!r}, dim={self.dim}, threads={self.threads}{quantize})"


def _without_surrogates(text: str) -> str:
    """The text with its surrogate pairs joined and what is left of them as U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _load_tokenizer(files: EncoderFiles) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(files.tokenizer))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in the Rust library is no Exception
        raise ModelFileError(f"{files.tokenizer}: cannot be read: {error}") from error
    vocab_size = files.config["vocab_size"]
    if tokenizer.get_vocab_size(with_added_tokens=True) > vocab_size:
        raise ModelFileError(
            f"{files.tokenizer}: has {tokenizer.get_vocab_size(with_added_tokens=True)} tokens, "
            f"config.json says {vocab_size}")
    # The file's own settings serve fixed batches; here texts lie side by side without padding.
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=files.max_tokens)
    return tokenizer


def _fingerprint(files: EncoderFiles, quantize: str | None) -> str:
    """SHA-256 over the configuration, the tokenizer, the ends of each tensor and `quantize`.

    Training changes every tensor, so its ends tell models apart without reading all of them; this
    is identity, not protection.
    """
    from flarecore import _C  # type: ignore[attr-defined]

    digest = hashlib.sha256(files.tokenizer.read_bytes())
    digest.update(json.dumps([files.config, files.max_tokens], sort_keys=True).encode())
    for tensor in sorted(_C.SafetensorsFile(files.weights).tensors, key=lambda t: str(t.name)):
        digest.update(json.dumps([tensor.name, tensor.dtype, tensor.shape]).encode())
        digest.update(tensor.data[:_SAMPLE_BYTES].tobytes())
        digest.update(tensor.data[-_SAMPLE_BYTES:].tobytes())
    if quantize is not None:
        digest.update(quantize.encode())
    return digest.hexdigest()
