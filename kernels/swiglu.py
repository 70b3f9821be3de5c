"""Gated activations: y = silu(gate) * up (SwiGLU) and y = gelu_tanh(gate) * up (GeGLU).

Elementwise in float32, rounded once. Source: Shazeer, "GLU Variants Improve Transformer", 2020.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .checks import FLOAT_DTYPES, ceil_div, check_tensor, require

BLOCK_COLUMNS = 1024
ACTIVATIONS = ("silu", "gelu_tanh")


@triton.jit
def _gated_activation_kernel(
    gate_ptr,  # (num_rows, num_columns)
    up_ptr,  # (num_rows, num_columns)
    out_ptr,  # (num_rows, num_columns)
    gate_stride,
    up_stride,
    out_stride,
    num_columns,
    GELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < num_columns
    gate = tl.load(gate_ptr + row * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + column, mask=inside, other=0.0).to(tl.float32)
    t = gate
    if GELU:
        # 0.5 * (1 + tanh(t / 2)) == sigmoid(t), which needs one exp and cannot overflow to nan.
        t = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    y = gate / (1.0 + tl.exp(-t)) * up
    tl.store(out_ptr + row * out_stride + column, y.to(out_ptr.dtype.element_ty), mask=inside)


def gated_activation(
    gate: torch.Tensor,
    up: torch.Tensor,
    *,
    activation: str = "silu",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """activation(gate) * up.

    Parameters
    ----------
    gate, up
        (num_rows, num_columns) float32, float16 or bfloat16; rows may be strided, so the two halves
        of one fused projection can be passed as views.
    activation
        "silu" or "gelu_tanh".
    out
        (num_rows, num_columns), may be `gate` or `up`; by default a new tensor like `gate`.

    Returns
    -------
    torch.Tensor
        `out`.

    Raises
    ------
    TypeError, ValueError
        If an argument does not fit.
    """
    require(
        activation in ACTIVATIONS,
        f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}",
    )
    check_tensor("gate", gate, (None, None), FLOAT_DTYPES, strided_dims=1)
    check_tensor("up", up, gate.shape, FLOAT_DTYPES, gate.device, strided_dims=1)
    num_rows, num_columns = gate.shape
    if out is None:
        out = torch.empty((num_rows, num_columns), dtype=gate.dtype, device=gate.device)
    check_tensor("out", out, gate.shape, FLOAT_DTYPES, gate.device, strided_dims=1)
    if num_rows == 0 or num_columns == 0:
        return out
    _gated_activation_kernel[(num_rows, ceil_div(num_columns, BLOCK_COLUMNS))](
        gate,
        up,
        out,
        gate.stride(0),
        up.stride(0),
        out.stride(0),
        num_columns,
        GELU=activation == "gelu_tanh",
        BLOCK=BLOCK_COLUMNS,
        num_warps=4,
    )
    return out
