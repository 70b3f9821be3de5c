"""Makes the GPU engine of a model: weights, cache, forward pass, sampler, worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flarecore.errors import ConfigError
from flarecore.gpu.adjustments import Adjuster
from flarecore.gpu.decode_run import DecodeRunner
from flarecore.gpu.device import open_device
from flarecore.gpu.device_ops import choose_ops
from flarecore.gpu.engine import Core, EngineSetup
from flarecore.gpu.forward import Forward, KvTensors
from flarecore.gpu.fused_sampler import choose_sampler
from flarecore.gpu.handles import GpuEngine
from flarecore.gpu.kv_cache import BLOCK_TOKENS, blocks_for
from flarecore.gpu.options import GpuOptions
from flarecore.gpu.row_sampling import RowSampler
from flarecore.gpu.shape import DecoderShape
from flarecore.gpu.state import StepLimits
from flarecore.gpu.stepper import Stepper
from flarecore.gpu.token_flags import TokenFlagTable
from flarecore.gpu.weights import DTYPES, DecoderWeights, ModelSource, load_weights

if TYPE_CHECKING:
    from flarecore.model import Model

__all__ = ["GPU_COMPUTES", "GPU_SAMPLERS", "make_engine"]

GPU_COMPUTES = tuple(DTYPES)
GPU_SAMPLERS = ("fused", "triton", "cuda", "reference")
_PROPOSAL_ROWS = 16  # of one verification: the cost of one row


def _weights(model: Model, shape: DecoderShape, compute: str, device: torch.device,
             options: GpuOptions) -> DecoderWeights:
    """Read at the first call per type and form; every engine of the model shares them."""
    cache: dict[tuple[str, str], Any] = model._gpu_weights
    key = compute, options.weights
    if key not in cache:
        cache[key] = load_weights(ModelSource(model._native), shape, DTYPES[compute], device,
                                  keeps_quantized=options.weights == "stored")
    weights: DecoderWeights = cache[key]
    return weights


def _kv_dtype(compute: str, device: torch.device) -> torch.dtype:
    """float32 keys and values exist in the interpreter only."""
    if compute == "float32" and device.type == "cuda":
        return torch.float16
    return DTYPES[compute]


def _num_blocks(kv_cache_bytes: int | None, block_bytes: int, shape: DecoderShape,
                device: torch.device) -> int:
    if kv_cache_bytes is None:
        four_contexts = 4 * blocks_for(shape.context_length) * block_bytes
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 1 << 30
        kv_cache_bytes = min(four_contexts, max(free // 2, block_bytes))
    if kv_cache_bytes < block_bytes:
        raise ConfigError(f"kv_cache_bytes is {kv_cache_bytes}, one block of {BLOCK_TOKENS} tokens "
                          f"of this model takes {block_bytes}")
    return kv_cache_bytes // block_bytes


def _level_of(device: torch.device) -> str:
    """What the bits of keys and values depend on besides model and compute mode."""
    if device.type != "cuda":
        return "interpreter"
    major, minor = torch.cuda.get_device_capability(device)
    return f"cuda sm_{major}{minor}, torch {torch.__version__}"


def make_engine(model: Model, *, kv_cache_bytes: int | None, passage_cache_bytes: int | None,
                compute: str, sampler: str, max_batch_tokens: int, deterministic: bool,
                options: GpuOptions) -> GpuEngine:
    """The GPU counterpart of ``_C.Engine(...)``.

    Blocks for passages are allocated with those of the cache and are no others: what no passage
    holds serves the sequences.

    Raises
    ------
    ConfigError
        The cache is too small, or the memory does not hold it.
    ModelFileError, UnsupportedError
        See :func:`flarecore.gpu.weights.load_weights`.
    """
    device = open_device(model.device)
    native = model._native
    shape = DecoderShape.of_model(native)
    weights = _weights(model, shape, compute, device, options)
    kv_dtype = _kv_dtype(compute, device)
    block_bytes = (2 * shape.num_layers * shape.kv_size * BLOCK_TOKENS * kv_dtype.itemsize)
    num_blocks = _num_blocks(kv_cache_bytes, block_bytes, shape, device)
    if passage_cache_bytes is None:
        passage_cache_bytes = num_blocks * block_bytes // 4
    num_blocks += passage_cache_bytes // block_bytes
    ops = choose_ops(options, device)
    try:
        kv = KvTensors(shape, num_blocks, kv_dtype, device, ops)
    except RuntimeError as error:
        raise ConfigError(
            f"the KV cache of {num_blocks * block_bytes} bytes does not fit into the device's "
            f"memory; pass a smaller kv_cache_bytes or passage_cache_bytes ({error})") from None
    forward = Forward(shape, weights, kv, row_tile=options.row_tile,
                      max_decode_rows=options.max_batch_rows, max_prefill_rows=max_batch_tokens)
    tokenizer = model.tokenizer
    token_flags = TokenFlagTable(tokenizer.token_table, tokenizer.eos_token_ids, device)
    fused = choose_sampler(sampler, token_flags.device, options.max_batch_rows)
    adjuster = Adjuster(ops, options.max_batch_rows, shape.vocab_size, device)
    row_sampler = RowSampler(fused, device, adjuster, use_reference=sampler == "reference")
    runner = DecodeRunner(forward, fused, token_flags, steps_per_replay=options.steps_per_replay,
                          steps_per_run=options.steps_per_run,
                          use_graphs=options.graphs and device.type == "cuda")
    stepper = Stepper(forward, row_sampler, runner, is_deterministic=deterministic)
    core = Core(EngineSetup(
        model=native, stepper=stepper, num_blocks=num_blocks, block_size_bytes=block_bytes,
        weights_size_bytes=weights.size_bytes, context_length=shape.context_length,
        vocab_size=shape.vocab_size,
        limits=StepLimits(prefill_rows=max_batch_tokens,
                          decode_rows=min(_PROPOSAL_ROWS, options.max_batch_rows),
                          replay_steps=min(options.steps_per_replay, options.steps_per_run),
                          run_steps=1 if sampler == "reference" else options.steps_per_run),
        max_decode_rows=options.max_batch_rows))
    return GpuEngine(core, shape.vocab_size, passage_cache_bytes, _level_of(device),
                     kv_format=str(kv_dtype).removeprefix("torch."))
