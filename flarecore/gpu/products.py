"""Matrix products at a few fixed row counts, so that a row's bits do not depend on its company.

A vendor library picks its kernel, and with it the order of a row's sum, by the shape of the whole
product. Rows of decode, verification and scoring therefore always go through products of exactly
`row_tile` rows, several of them one after the other if there are more; what the other rows of a
tile hold does not reach a row. Prefill takes one product for all its rows, padded to one of a few
counts that depends on the rows of its own sequence only (design, guarantee 1).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["PREFILL_COUNTS", "FloatProduct", "multiply", "padded_rows"]

PREFILL_COUNTS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

FloatProduct = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


def padded_rows(num_rows: int) -> int:
    """The smallest prefill count that holds `num_rows` rows (at most the last count)."""
    return next(count for count in PREFILL_COUNTS if count >= num_rows)


def multiply(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, tile: int,
             product: FloatProduct | None = None) -> None:
    """out = x @ weight.T in products of `tile` rows.

    Parameters
    ----------
    x
        (rows, inputs), rows a multiple of `tile`.
    weight
        (outputs, inputs) of the same dtype.
    out
        (rows, outputs)
    product
        What multiplies one tile; by default torch.mm in the dtype of `x`.
    """
    transposed = weight.t()
    for begin in range(0, x.shape[0], tile):
        rows = slice(begin, begin + tile)
        if product is None:
            torch.mm(x[rows], transposed, out=out[rows])
        else:
            product(x[rows], transposed, out[rows])


def _plain(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    torch.mm(x, weight, out=out)


def _direct(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    torch.mm(x, weight, out_dtype=torch.float32, out=out)  # type: ignore[call-overload]


def _copied(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(torch.mm(x, weight, out_dtype=torch.float32))  # type: ignore[call-overload]


def _widened(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    torch.mm(x.float(), weight.float(), out=out)


def float32_product(dtype: torch.dtype, device: torch.device) -> FloatProduct:
    """How this torch gives float32 logits of 16-bit weights.

    Rounded to bfloat16, logits near 20 would come in steps of 1/8, and confidences with them.
    """
    if dtype == torch.float32:
        return _plain
    if device.type == "cuda":
        x = torch.ones((16, 16), dtype=dtype, device=device)
        out = torch.zeros((16, 16), dtype=torch.float32, device=device)
        for product in (_direct, _copied):
            try:
                product(x, x, out)
            except (RuntimeError, TypeError):  # this torch has no such overload
                continue
            if bool((out == 16.0).all()):
                return product
    return _widened
