"""Every kernel against float64, at sizes of real models on a device and tiny ones elsewhere."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from flarecore.bench.gpu.quantized_checks import check_quantized
from flarecore.bench.gpu.report import Report, Settings
from flarecore.bench.gpu.vendor_checks import check_vendor_products
from flarecore.gpu.device import load_kernels
from flarecore.gpu.fused_sampler import TritonSampler, choose_sampler
from flarecore.gpu.mirrored import Mirrored
from flarecore.gpu.row_sampling import RowSettings, fill_settings, state_fields, state_of
from flarecore.reference.sampler import sample as reference_sample

__all__ = ["check_kernels"]

_SAMPLINGS: tuple[dict[str, Any], ...] = (
    {}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 40},
    {"temperature": 1.3, "top_p": 0.9}, {"temperature": 1.0, "top_k": 50, "min_p": 0.05},
)


def _random(settings: Settings, *shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    values = np.random.default_rng(seed).standard_normal(shape)
    return torch.from_numpy(values).to(dtype).to(settings.torch_device)


def _close(what: str, got: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> str:
    """Largest difference, relative to the size of the values; raises above the tolerance."""
    difference = (got.double().cpu() - wanted.double().cpu()).abs().max().item()
    size = wanted.abs().max().item()
    if not difference <= tolerance * size:
        raise AssertionError(f"{what}: off by {difference:.3g} of {size:.3g}")
    return f"max error {difference / size:.1e}"


def _dtype(settings: Settings) -> tuple[torch.dtype, float]:
    """Type of activations, and what its rounding may cost."""
    return (torch.bfloat16, 2e-2) if settings.is_cuda else (torch.float32, 2e-5)


def _check_norm(settings: Settings) -> str:
    dtype, tolerance = _dtype(settings)
    columns = 4096 if settings.is_cuda else 96
    x = _random(settings, 5, columns, dtype=dtype)
    residual = _random(settings, 5, columns, dtype=torch.float32, seed=1)
    weight = _random(settings, columns, dtype=torch.float32, seed=2)
    total = residual.double() + x.double()
    wanted = total * torch.rsqrt((total * total).mean(1, keepdim=True) + 1e-5) * weight.double()
    got = load_kernels().norm.rms_norm(x, weight, 1e-5, residual=residual)
    _close("the residual", residual, total, 1e-6)
    return _close("the norm", got, wanted, tolerance)


def _check_activation(settings: Settings) -> str:
    dtype, tolerance = _dtype(settings)
    both = _random(settings, 3, 2 * (8192 if settings.is_cuda else 80), dtype=dtype)
    gate, up = both.chunk(2, dim=1)
    wanted = torch.nn.functional.silu(gate.double()) * up.double()
    return _close("SwiGLU", load_kernels().swiglu.gated_activation(gate, up), wanted, tolerance)


def _attention_reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of all rows in float64. q (T, H, D), k and v (T, KV, D) -> (T, H, D)."""
    group = q.shape[1] // k.shape[1]
    keys, values = (t.double().repeat_interleave(group, dim=1) for t in (k, v))
    scores = torch.einsum("thd,shd->hts", q.double(), keys) * q.shape[2] ** -0.5
    mask = torch.ones(len(q), len(q), dtype=torch.bool, device=q.device).tril()
    probs = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return torch.einsum("hts,shd->thd", probs, values)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Pairs (2 i, 2 i + 1) of x (T, H, D) turned, in float64."""
    first, second = x[..., 0::2].double(), x[..., 1::2].double()
    c, s = cos[:, None].double(), sin[:, None].double()
    return torch.stack((first * c - second * s, first * s + second * c), dim=-1).flatten(2)


def _check_attention(settings: Settings) -> str:
    """RoPE with the store, then prefill's and decode's attention over the blocks it filled."""
    kernels = load_kernels()
    dtype, tolerance = _dtype(settings)
    num_tokens, heads, kv_heads, dim = (1100, 32, 8, 128) if settings.is_cuda else (40, 4, 2, 16)
    device = settings.torch_device
    q = _random(settings, num_tokens, heads, dim, dtype=dtype)
    k = _random(settings, num_tokens, kv_heads, dim, dtype=dtype, seed=1)
    v = _random(settings, num_tokens, kv_heads, dim, dtype=dtype, seed=2)
    angles = torch.arange(num_tokens)[:, None] * 0.01 ** (torch.arange(dim // 2) / dim)[None]
    cos, sin = angles.cos().float().to(device), angles.sin().float().to(device)
    num_blocks = -(-num_tokens // 32)
    cache = torch.zeros((2, num_blocks + 2, kv_heads, 32, dim), dtype=dtype, device=device)
    table = torch.randperm(num_blocks + 2)[:num_blocks].to(torch.int32).to(device)[None]
    positions = torch.arange(num_tokens, dtype=torch.int32, device=device)
    wanted = _attention_reference(_rotated(q, cos, sin), _rotated(k, cos, sin), v)
    kernels.rope.rope_store(q, k, v, cos, sin, positions, torch.zeros_like(positions), table,
                            cache[0], cache[1], interleaved=True)
    begin = torch.tensor([0, num_tokens], dtype=torch.int32, device=device)
    attention = kernels.attention
    got = attention.prefill_attention(q, cache[0], cache[1], table, positions, begin,
                                      scale=dim**-0.5, max_query_rows=num_tokens)
    _close("prefill", got, wanted, tolerance)
    last = slice(num_tokens - 7, num_tokens)
    workspace = attention.DecodeWorkspace.allocate(7, heads, kv_heads, dim, num_tokens, device)
    begin = torch.tensor([0, 7], dtype=torch.int32, device=device)
    got = attention.decode_attention(
        q[last].contiguous(), cache[0], cache[1], table, positions[last].contiguous(), begin,
        workspace, scale=dim**-0.5, max_context=num_tokens, max_query_rows=7)
    return _close("decode", got, wanted[last], tolerance)


def _sampled(sampler: Any, logits: torch.Tensor, settings: list[RowSettings], *,
             first: int = 7, filters: bool = True) -> Mirrored:
    state = Mirrored(state_fields(len(settings), 1), logits.device)
    for row, setting in enumerate(settings):
        fill_settings(state.host, row, setting)
    state.host["positions"][:] = np.arange(len(settings)) + first
    state.upload()
    sampler(logits, state_of(state), filters=filters)
    state.download()
    if logits.is_cuda:
        torch.cuda.synchronize()
    return state


def _settings_of(row: int, **options: Any) -> RowSettings:
    values: dict[str, Any] = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
                              "repetition_penalty": 1.0, "logit_bias": {}, "stream": row, "seed": 5}
    return RowSettings(**{**values, **options})


def _check_sampler(settings: Settings, name: str, vocab_size: int) -> str:
    """Tokens of the reference sampler; then one row alone, which must have the same bits."""
    num_rows = 10 if settings.is_cuda else 5
    logits = _random(settings, num_rows, vocab_size, dtype=torch.float32) * 3.0
    flags = torch.zeros(vocab_size, dtype=torch.uint8, device=logits.device)
    sampler = choose_sampler(name, flags, num_rows)
    rows = [_settings_of(row, **_SAMPLINGS[row % len(_SAMPLINGS)]) for row in range(num_rows)]
    together = _sampled(sampler, logits, rows)
    num_close = 0
    for row, setting in enumerate(rows):
        wanted = reference_sample(
            logits[row].cpu().numpy(), temperature=setting.temperature, top_k=setting.top_k,
            top_p=setting.top_p, min_p=setting.min_p, seed=5, stream=row, position=row + 8)
        if wanted.margin < 1e-6:
            num_close += 1
            continue
        token = int(together.host["history_tokens"][row, 0])
        prob = float(together.host["history_probs"][row, 0])
        if token != wanted.token_id or abs(prob - wanted.prob) > 1e-5 * wanted.prob:
            raise AssertionError(f"row {row}: token {token} ({prob:.7g}), the reference gives "
                                 f"{wanted.token_id} ({wanted.prob:.7g})")
    row = 1
    alone = _sampled(sampler, logits[row : row + 1], [rows[row]], first=row + 7, filters=False)
    for field in ("history_tokens", "history_probs"):
        if alone.host[field][0].tobytes() != together.host[field][row].tobytes():
            raise AssertionError(f"{field} of a row alone differ from those in a batch")
    return f"{num_rows - num_close} rows"


def check_kernels(report: Report) -> None:
    """Runs them all."""
    settings = report.settings
    report.check("kernels", "RMSNorm + residual", lambda: _check_norm(settings))
    report.check("kernels", "SwiGLU", lambda: _check_activation(settings))
    report.check("kernels", "RoPE + store, both attentions", lambda: _check_attention(settings))
    check_vendor_products(report)
    check_quantized(report)
    vocabularies = (32000, 49152, 128256, 262144) if settings.is_cuda else (1500,)
    names = ["triton"]
    flags = torch.zeros(8, dtype=torch.uint8, device=settings.torch_device)
    if not isinstance(choose_sampler("fused", flags, 1), TritonSampler):
        names.append("cuda")
    for name in names:
        for vocab in vocabularies[: 2 if settings.is_quick else None]:
            report.check("kernels", f"sampler {name}, vocabulary {vocab}",
                         functools.partial(_check_sampler, settings, name, vocab))
