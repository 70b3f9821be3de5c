"""What must be right before anything is timed, and the tolerances it is held to."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from flarecore import _C
from flarecore.errors import FlarecoreError, UnsupportedError
from flarecore.reference.transformers_import import INSTALL_TRANSFORMERS

if TYPE_CHECKING:
    from flarecore.bench.runner import Runner

__all__ = [
    "ProofError", "Reference", "find_reference", "prove_close", "prove_equal", "prove_exact",
    "transformers_decoder",
]

# |difference| of a probability between two float32 implementations of one model.
EXACT_TOLERANCE = 1e-4
# int8 against float32 over the probabilities of given tokens: mean and largest |difference|, and
# the median |difference| of their logarithms, which also says something where all are small.
INT8_MEAN, INT8_LARGEST, INT8_LOG = 0.02, 0.35, 0.2
# A peer in its own arithmetic, perhaps on weights quantised once more: that it is the same model.
PEER_MEAN, PEER_LARGEST, PEER_LOG = 0.1, 0.9, 1.0


class ProofError(FlarecoreError):
    """Something that was to be timed does not do what it should; nothing is timed."""


class Reference(Protocol):
    """An independent implementation on the dequantised weights."""

    def logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """(T, V) logits of every token."""


def find_reference(path: Path) -> tuple[str, Reference]:
    """The most independent implementation that is installed and knows the model.

    Returns
    -------
    str, Reference
        Its name and itself.

    Raises
    ------
    UnsupportedError
        There is none; the message says what to install.
    """
    try:
        return "transformers float32", transformers_decoder(path)
    except (ImportError, UnsupportedError) as error:
        reason = error
    try:
        if path.is_dir():
            raise reason
        from flarecore.reference.decoder import ReferenceDecoder
        from flarecore.reference.gguf_weights import load_llama_gguf

        return "the numpy reference", _Numpy(ReferenceDecoder(load_llama_gguf(path), "float32"))
    except (ImportError, UnsupportedError):
        raise UnsupportedError(
            f"no reference to compare with ({reason}); {INSTALL_TRANSFORMERS}"
        ) from reason


def transformers_decoder(path: Path) -> Any:
    """The file in ``transformers``: a ``flarecore.reference`` decoder.

    Raises
    ------
    ImportError, UnsupportedError
        A package is missing, or the architecture is not known.
    """
    backend = importlib.import_module("flarecore.reference.transformers_backend")
    if path.is_dir():
        torch, transformers = importlib.import_module(
            "flarecore.reference.transformers_import").import_transformers()
        return backend.TransformersDecoder(transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager", local_files_only=True).eval())
    if _C.GgufFile(path).metadata.get("general.architecture") != "gemma3":
        return backend.TransformersDecoder(path)
    gemma = importlib.import_module("flarecore.reference.gemma_weights")
    return backend.TransformersDecoder(gemma.load_gemma_gguf(path))


class _Numpy:
    def __init__(self, decoder: object) -> None:
        self._decoder = decoder

    def logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        return np.asarray(self._decoder.logits(token_ids))  # type: ignore[attr-defined]


def prove_exact(
    runner: Runner, reference: Reference, prompt: Sequence[int], num_tokens: int = 8
) -> str:
    """float32: the reference's greedy tokens, and its probabilities within 1e-4.

    Parameters
    ----------
    runner : Runner
        In float32.
    reference : Reference
    prompt : sequence of int
        At least two tokens.
    num_tokens : int
        Tokens to decode.

    Returns
    -------
    str
        What was shown.

    Raises
    ------
    ProofError
        A token or a probability differs.
    """
    runner.set_contexts([prompt])
    decoded = runner.decode(num_tokens)[0]
    token_ids = [*prompt, *decoded]
    logits = np.asarray(reference.logits(token_ids), dtype=np.float64)[:-1]
    greedy = logits[len(prompt) - 1:].argmax(axis=1).tolist()
    if greedy != decoded:
        raise ProofError(
            f"{runner.name} decodes {decoded} where the reference decodes {greedy}; nothing is "
            f"timed until this is repaired")
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs /= probs.sum(axis=1, keepdims=True)
    expected = probs[np.arange(len(token_ids) - 1), token_ids[1:]]
    largest = float(np.abs(runner.score(token_ids, 1) - expected).max())
    if not largest <= EXACT_TOLERANCE:
        raise ProofError(
            f"{runner.name}: a probability differs from the reference by {largest:.2g}, allowed "
            f"is {EXACT_TOLERANCE:g}; nothing is timed until this is repaired")
    return (f"{runner.name}: {num_tokens} greedy tokens equal, {len(expected)} probabilities "
            f"within {largest:.1g}")


def prove_close(
    runner: Runner, expected: npt.NDArray[np.float64], token_ids: Sequence[int], *,
    is_peer: bool = False,
) -> str:
    """Probabilities of given tokens are those of the exact engine, within a stated tolerance.

    Parameters
    ----------
    runner : Runner
    expected : numpy.ndarray
        (n - 1,) probabilities of ``token_ids[1:]`` by the exact engine.
    token_ids : sequence of int
    is_peer : bool
        Another implementation, with more room: it only has to be the same model.

    Returns
    -------
    str
        What was shown.

    Raises
    ------
    ProofError
        The differences are larger than allowed.
    """
    got = np.asarray(runner.score(token_ids, 1), dtype=np.float64)
    if got.shape != expected.shape:
        raise ProofError(
            f"{runner.name} gives {got.shape} probabilities, expected {expected.shape}")
    difference = np.abs(got - expected)
    tiny = 1e-30
    log = np.abs(np.log(np.maximum(got, tiny)) - np.log(np.maximum(expected, tiny)))
    found = (float(difference.mean()), float(difference.max()), float(np.median(log)))
    limits = ((PEER_MEAN, PEER_LARGEST, PEER_LOG) if is_peer
              else (INT8_MEAN, INT8_LARGEST, INT8_LOG))
    if not all(value <= limit for value, limit in zip(found, limits, strict=True)):
        raise ProofError(
            f"{runner.name} against float32: probabilities differ by {found[0]:.2g} in the mean, "
            f"{found[1]:.2g} at most, their logarithms by {found[2]:.2g} in the median; allowed "
            f"are {limits[0]:g}, {limits[1]:g} and {limits[2]:g}. Nothing is timed until this is "
            f"repaired")
    return (f"{runner.name}: {len(got)} probabilities within {found[0]:.1g} of float32 in the "
            f"mean, {found[1]:.1g} at most")


def prove_equal(what: str, got: object, expected: object) -> None:
    """Two results that must be the same.

    Raises
    ------
    ProofError
        They differ.
    """
    if got != expected:
        raise ProofError(f"{what}: got {got!s:.200}, expected {expected!s:.200}; nothing is timed "
                         f"until this is repaired")
