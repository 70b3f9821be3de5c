"""The sentence encoder of a folder in ``transformers``: the peer of ``bench retrieval``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flarecore.reference.transformers_import import import_transformers
from flarecore.retrieval.encoder_files import read_encoder_files

__all__ = ["TransformersEncoder"]


class TransformersEncoder:
    """Eager PyTorch on the CPU, float32.

    Parameters
    ----------
    folder : Path
        What :class:`flarecore.retrieval.SentenceEncoder` loads.
    threads : int
        Threads of PyTorch, for the whole process.

    Raises
    ------
    UnsupportedError
        A package is missing.
    """

    name = "transformers float32"

    def __init__(self, folder: Path, threads: int) -> None:
        self._torch, transformers = import_transformers()
        self._torch.set_num_threads(threads)
        files = read_encoder_files(folder)
        self._max_tokens = files.max_tokens
        self._takes_mean = files.config["pooling"] == "mean"
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True)
        self._model: Any = transformers.BertModel.from_pretrained(
            folder, local_files_only=True).eval()

    def encode(self, text: str) -> npt.NDArray[np.float32]:
        """(dim,) float32 of length 1."""
        batch = self._tokenizer(text, truncation=True, max_length=self._max_tokens,
                                return_tensors="pt")
        with self._torch.inference_mode():
            hidden = self._model(**batch).last_hidden_state[0]
            pooled = hidden.mean(dim=0) if self._takes_mean else hidden[0]
            return np.asarray((pooled / pooled.norm()).numpy())
