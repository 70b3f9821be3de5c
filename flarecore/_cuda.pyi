"""Types of the CUDA module. tests/test_cuda_module.py holds them against the module.

Pointers are integers (``tensor.data_ptr()``) into the memory of the current CUDA device, ``stream``
is ``torch.cuda.current_stream().cuda_stream``. Every call checks what the host can see before it
launches anything (ConfigError), and raises UnsupportedError where there is no usable device.
Nothing synchronises with the host, so every launch can be captured in a CUDA graph, once the same
call ran outside of one (the driver loads a kernel at its first launch). Contents of device memory
are not read by the host; kernels guard against values that would lead them astray.
"""

from collections.abc import Sequence
from typing import Literal

BLOCK_TOKENS: int
MAX_VOCAB_SIZE: int

def build_info() -> dict[str, str]:
    """Version of nvcc and architectures that the module was built with."""

def device_count() -> int:
    """Devices that can run the kernels; 0 without a driver."""

def device_status() -> str:
    """Why `device_count()` is what it is, in words."""

def sample_workspace_size(
    *, max_rows: int, vocab_size: int, candidate_capacity: int = 32768
) -> int:
    """Bytes that `sample` needs for up to `max_rows` rows. They must be zero before the first use.

    `candidate_capacity` bounds the tokens per row that the filters keep in a list; rows with more
    give the same result more slowly.
    """

def sample(
    *,
    logits: int,
    logits_stride: int,
    dtype: Literal["float32", "float16", "bfloat16"],
    num_rows: int,
    vocab_size: int,
    token_flags: int,
    floats: int,
    ints: int,
    positions: int,
    tokens: int,
    flags: int,
    num_sampled: int,
    min_prob: int,
    history_tokens: int,
    history_probs: int,
    history_flags: int,
    history_capacity: int,
    workspace: int,
    workspace_bytes: int,
    stream: int,
    candidate_capacity: int = 32768,
    choice_logits: int = 0,
    choice_stride: int = 0,
    seen: int = 0,
    penalties: int = 0,
    bias: int = 0,
    bias_stride: int = 0,
    advance: bool = True,
    filters: bool = True,
) -> None:
    """Sample one token per row and move the rows' state on: what kernels.sampling.sample does.

    Parameters
    ----------
    logits, logits_stride, dtype
        (num_rows, vocab_size) raw, rows `logits_stride` elements apart.
    token_flags
        (vocab_size) uint8: kernels.sampling.TokenFlag bits of each token.
    floats, ints, positions, tokens, flags, num_sampled, min_prob, history_*
        The tensors of kernels.sampling.SamplerState; `history_capacity` is their second dimension.
    workspace, workspace_bytes
        `sample_workspace_size` bytes for this many rows or more, with the same
        `candidate_capacity`, aligned to 16; one step at a time may use it. Not
        kernels.sampling.SamplerWorkspace.
    choice_logits, choice_stride
        Like `logits`: what to choose from instead; 0 for none. Confidence always comes from
        `logits`.
    seen, penalties
        (num_rows, ceil(vocab_size / 32)) uint32 and (num_rows) float32, both or neither: a token
        whose bit is set gets l / penalty if l > 0, else l * penalty. With `advance` the sampled
        token's bit is set. `mark_seen` fills a row.
    bias, bias_stride
        (num_rows, vocab_size) float32, added after the penalty; a stride of 0 shares one row.
    advance
        Also add 1 to `positions`; False for rows whose positions the caller sets anew.
    filters
        Whether rows may use top_k, top_p or min_p, which takes a second launch. Without it a row
        that uses one gets TokenFlag.INVALID.
    """

def mark_seen(
    *,
    seen: int,
    vocab_size: int,
    num_tokens: int,
    stream: int,
    tokens: int = 0,
    clear: bool = True,
) -> None:
    """Set the bits of `tokens` ((num_tokens) int32) in one row of `seen`, cleared before.

    Ids outside the vocabulary are skipped.
    """

def copy_blocks(
    *,
    caches: Sequence[int],
    copies: Sequence[tuple[int, int, int, int, int]],
    num_blocks: int,
    num_heads: int,
    token_bytes: int,
    block_stride_bytes: int,
    stream: int,
    block_tokens: int = 32,
) -> None:
    """Copy tokens of KV blocks to the start of other blocks, and fill the rest with zeros.

    Parameters
    ----------
    caches
        K and V of every layer: each (num_blocks, num_heads, block_tokens, head_dim), contiguous but
        for the block dimension.
    copies
        (source, following, destination, first, num_tokens) each: tokens [first, first +
        num_tokens) of the blocks `source` and `following` laid end to end; `following` is not
        looked at where `source` holds them all. Destinations are distinct and nobody's source,
        but for a copy (block, block, block, 0, num_tokens), which truncates the block in place.
    token_bytes
        Bytes of one token and head: head_dim times the element size, a multiple of 16.
    block_stride_bytes
        From one block to the next.
    """

def gather_rows(
    *,
    source: int,
    source_stride_bytes: int,
    num_source_rows: int,
    indices: int,
    num_rows: int,
    row_bytes: int,
    out: int,
    out_stride_bytes: int,
    stream: int,
) -> None:
    """out[i] = source[indices[i]] for rows of hidden states or logits.

    `indices` is (num_rows) int32 in device memory. A row whose index is out of range is filled with
    bytes 0xff, which is NaN in every float type, so that the sampler flags it.
    """
