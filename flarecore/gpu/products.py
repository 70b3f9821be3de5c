"""Matrix products whose rows do not depend on their company.

A vendor library picks its kernel, and with it the order of a row's sum, by the shape of the whole
product. Rows of decode, verification and scoring therefore always go through products of exactly
`row_tile` rows, several of them one after the other if there are more; what the other rows of a
tile hold does not reach a row. 8- and 4-bit matrices have a kernel for few rows that keeps the same
promise at any number of rows. Prefill takes one product for all its rows, padded to one of a few
counts that depends on the rows of its own sequence only; a quantised matrix
is written out for it, a part at a time (kernels/quantized_values.py tells the cost).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from flarecore.gpu.device import load_kernels
from flarecore.gpu.matrices import Matrix, QuantizedPart, parts_of

__all__ = ["FEW_ROWS", "PREFILL_COUNTS", "FloatProduct", "Products", "multiply", "padded_rows"]

PREFILL_COUNTS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

# Prefills of up to so many rows go through the kernel for few rows: a tile of 16 rows reads a
# weight's own bytes, mostly from the cache, while writing it out costs four more.
FEW_ROWS = 64

# What is written out of a quantised matrix at a time: stays in the second-level cache of an H100.
_PART_BYTES = 32 << 20

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


class Products:
    """Multiplies rows with the matrices of one model. Works in stream order, for one user.

    Parameters
    ----------
    matrices
        All that will be multiplied with.
    dtype
        Of the rows.
    row_tile
        Rows of one vendor product of decode rows.
    max_decode_rows
        Most rows of `decode`.

    Attributes
    ----------
    num_quantized
        Products that went through the kernel for few rows so far.
    """

    def __init__(self, matrices: Iterable[Matrix], dtype: torch.dtype, device: torch.device,
                 row_tile: int, max_decode_rows: int) -> None:
        self.row_tile = row_tile
        self.num_quantized = 0
        self._kernels: Any = load_kernels().quantized
        self._float_product = float32_product(dtype, device)
        quantized = [part for matrix in matrices for part, _ in parts_of(matrix)
                     if not isinstance(part, torch.Tensor)]
        # Without quantised matrices the smallest there is.
        self._workspace = self._kernels.ProductWorkspace.allocate(
            [part.shape for part in quantized], max(max_decode_rows, FEW_ROWS), device)
        part_values = max((min(part.numel(), max(_PART_BYTES // dtype.itemsize, part.shape[1]))
                           for part in quantized), default=0)
        self._values = torch.empty(part_values, dtype=dtype, device=device)

    def decode(self, x: torch.Tensor, matrix: Matrix, out: torch.Tensor, num_rows: int) -> None:
        """out[:num_rows] = x[:num_rows] @ matrix.T; a row's bits depend on nothing else.

        `x` and `out` have at least as many rows as whole tiles need; `out` may be float32.
        """
        padded = -(-num_rows // self.row_tile) * self.row_tile
        for part, outputs in parts_of(matrix):
            if isinstance(part, torch.Tensor):
                product = None if out.dtype == x.dtype else self._float_product
                multiply(x[:padded], part, out[:padded, outputs], self.row_tile, product)
            else:
                self._few(x[:num_rows], part, out[:num_rows, outputs])

    def prefill(self, x: torch.Tensor, matrix: Matrix, out: torch.Tensor, num_rows: int) -> None:
        """The same for rows of one sequence, whose bits may depend on their number."""
        padded = padded_rows(num_rows)
        for part, outputs in parts_of(matrix):
            if isinstance(part, torch.Tensor):
                multiply(x[:padded], part, out[:padded, outputs], padded)
            elif padded <= FEW_ROWS:
                self._few(x[:num_rows], part, out[:num_rows, outputs])
            else:
                self._many(x[:padded], part, out[:padded, outputs])

    def _few(self, x: torch.Tensor, part: QuantizedPart, out: torch.Tensor) -> None:
        self._kernels.quantized_product(x, part, self._workspace, out=out)
        self.num_quantized += 1

    def _many(self, x: torch.Tensor, part: QuantizedPart, out: torch.Tensor) -> None:
        outputs, inputs = part.shape
        step = self._values.numel() // inputs
        step -= step % 128 if step > 128 else 0  # the vendor's kernels like whole tiles
        for begin in range(0, outputs, step):
            end = min(begin + step, outputs)
            values = self._values[: (end - begin) * inputs].view(end - begin, inputs)
            self._kernels.dequantize(part, begin, values)
            torch.mm(x, values.t(), out=out[:, begin:end])


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
