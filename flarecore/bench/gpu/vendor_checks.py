"""What the engine takes for granted of the vendor's products, tried at the sizes of real models."""

from __future__ import annotations

import torch

from flarecore.bench.gpu.report import Report, Settings
from flarecore.bench.gpu.shapes import SHAPES
from flarecore.gpu.products import FloatProduct, float32_product, multiply

__all__ = ["check_vendor_products"]

_TILE = 16  # rows; GpuOptions.row_tile by default


def _shapes(settings: Settings) -> list[tuple[int, int]]:
    """(outputs, inputs) of the matrices that decode rows are multiplied with."""
    names = [name for name in SHAPES if (name != "tiny") == settings.is_cuda]
    shapes = [SHAPES[name] for name in names[: 1 if settings.is_quick else None]]
    return sorted({pair for s in shapes for pair in (
        (s.qkv_size, s.hidden_size), (s.hidden_size, s.query_size),
        (2 * s.intermediate_size, s.hidden_size), (s.hidden_size, s.intermediate_size),
        (s.vocab_size, s.hidden_size))})


def _multiplied(x: torch.Tensor, weight: torch.Tensor, kind: torch.dtype,
                product: FloatProduct | None) -> torch.Tensor:
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=kind, device=x.device)
    multiply(x, weight, out, _TILE, product)
    return out


def _check(x: torch.Tensor, weight: torch.Tensor, kind: torch.dtype,
           product: FloatProduct | None, tolerance: float) -> None:
    """One tile against float64, turned upside down, and with one row that is left of it."""
    what = f"{tuple(weight.shape)} into {str(kind).removeprefix('torch.')}"
    out = _multiplied(x, weight, kind, product)
    wanted = x.double() @ weight.double().t()
    worst = ((out - wanted).abs().max() / wanted.abs().max()).item()
    if not worst <= tolerance:
        raise AssertionError(f"{what}: off by {worst:.3g} of the largest value")
    alone = torch.zeros_like(x)
    alone[3] = x[11]
    if not (torch.equal(_multiplied(x.flip(0), weight, kind, product), out.flip(0))
            and torch.equal(_multiplied(alone, weight, kind, product)[3], out[11])):
        raise AssertionError(f"{what}: a row's bits depend on the rest of its tile")


def _check_all(settings: Settings) -> str:
    device = torch.device(settings.torch_device)
    dtype, tolerance = (torch.bfloat16, 2e-2) if settings.is_cuda else (torch.float32, 2e-5)
    generator = torch.Generator(device).manual_seed(7)
    shapes = _shapes(settings)
    for outputs, inputs in shapes:
        weight, x = (torch.rand((rows, inputs), generator=generator, device=device).sub_(0.5)
                     .to(dtype) for rows in (outputs, _TILE))
        _check(x, weight, dtype, None, tolerance)
        _check(x, weight, torch.float32, float32_product(dtype, device), tolerance)
    return f"{len(shapes)} matrices"


def check_vendor_products(report: Report) -> None:
    """Every claim of equal bits for weights in floats rests on what is tried here.

    Not in a quick run on a device: that one is for compute-sanitizer, which would take long to look
    into kernels that are not ours.
    """
    if report.settings.is_cuda and report.settings.is_quick:
        return
    report.check("kernels", "vendor products: rows, bits", lambda: _check_all(report.settings))
