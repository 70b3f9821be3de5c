"""Products with 8- and 4-bit matrices: checked against float64, and timed."""

from __future__ import annotations

import functools
from typing import Any

import torch

from flarecore.bench.gpu.report import Report, Settings
from flarecore.bench.gpu.timers import in_graph_us
from flarecore.gpu.device import load_kernels
from flarecore.gpu.matrices import QuantizedPart

__all__ = ["check_quantized", "measure_quantized", "random_quantized"]


def random_quantized(name: str, outputs: int, inputs: int, device: str
                     ) -> tuple[QuantizedPart, tuple[torch.Tensor, ...]]:
    """A seeded matrix of one of the formats, and its codes, scales and supers.

    Its values have a mean of about zero and a spread of about inputs ** -0.5.
    """
    kernels = load_kernels().quantized
    form = kernels.FORMATS[name]
    generator = torch.Generator(device).manual_seed(outputs + inputs)

    def integers(low: int, high: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, dtype=dtype, device=device, generator=generator)

    is_short = form.bits == 4
    codes = integers(0 if is_short else -127, 16 if is_short else 128,
                     torch.uint8 if is_short else torch.int8, outputs, inputs)
    size = inputs**-0.5 / (4.6 if is_short else 73.0)  # over the spread of the codes
    shape = (outputs, inputs // 32, form.scale_fields)
    # What a minimum is, in scales: the middle of unsigned codes.
    middle = 7.5 if is_short else 0.0
    if form.is_two_level:
        scales = integers(8, 24, form.scale_dtype, *shape)
        supers = torch.full((outputs, inputs // 256, form.super_fields), size / 16,
                            dtype=torch.float16, device=device)
        supers[..., 1:] *= middle
    else:
        scales = torch.rand(shape, device=device, generator=generator).add_(0.5).mul_(size).half()
        supers = scales.new_empty(0)
        scales[..., 1:] = -middle * scales[..., :1]
    matrix: QuantizedPart = kernels.QuantizedMatrix.pack(
        form, codes, scales, supers if form.is_two_level else None)
    return matrix, (codes, scales, supers)


def _values(form: Any, codes: torch.Tensor, scales: torch.Tensor, supers: torch.Tensor
            ) -> torch.Tensor:
    """What the numbers stand for, in float32 as the specification computes it."""
    first, second = scales[..., :1].float(), scales[..., 1:].float()
    if form.is_two_level:
        first = first * supers[..., :1].float().repeat_interleave(8, dim=1)
        by = supers[..., :1] if form.has_halves else -supers[..., 1:]
        second = second * by.float().repeat_interleave(8, dim=1)
    both = torch.cat([first, second if form.has_halves else first], dim=2)[..., None]
    q = codes.float().view(*scales.shape[:2], 2, 16) - form.zero
    values = q * both + second[..., None] if form.has_min else q * both
    out: torch.Tensor = values.view(codes.shape)
    return out


def _check(settings: Settings, name: str) -> str:
    """Values bit for bit, 17 rows against float64, and each of some rows by itself."""
    kernels = load_kernels().quantized
    outputs, inputs = (1000, 4096) if settings.is_cuda else (70, 256)
    matrix, numbers = random_quantized(name, outputs, inputs, settings.torch_device)
    values = _values(matrix.format, *numbers)
    written = kernels.dequantize(matrix, 0, torch.empty_like(values))
    if not torch.equal(written, values):
        raise AssertionError("the values written out are not those of the matrix")
    dtype = torch.bfloat16 if settings.is_cuda else torch.float32
    generator = torch.Generator(settings.torch_device).manual_seed(1)
    x = torch.randn((17, inputs), generator=generator, device=settings.torch_device).to(dtype)
    workspace = kernels.ProductWorkspace.allocate([matrix.shape], 17, x.device)
    out = torch.empty((17, outputs), device=x.device)
    kernels.quantized_product(x, matrix, workspace, out=out)
    wanted = x.double() @ values.double().t()
    worst = ((out - wanted).abs() / (x.double().abs() @ values.double().abs().t())).max().item()
    if not worst <= 4e-6:
        raise AssertionError(f"a product is off by {worst:.3g} of its summands")
    for rows in ([3], [0, 16], list(range(1, 16))):
        some = kernels.quantized_product(
            x[rows].contiguous(), matrix, workspace, out=torch.empty_like(out[: len(rows)]))
        if not torch.equal(some, out[rows]):
            raise AssertionError(f"rows {rows} differ from the same rows among 17")
    return f"max error {worst:.1e} of the summands"


def check_quantized(report: Report) -> None:
    """Every format."""
    names = list(load_kernels().quantized.FORMATS)
    for name in ("Q4_1", "Q6_K") if report.settings.is_quick else names:
        report.check("kernels", f"product with {name}: values, bits",
                     functools.partial(_check, report.settings, name))


def _row_us(settings: Settings, name: str, num_rows: int) -> tuple[float, str, int]:
    """Microseconds of one product in a graph, a remark, and the bytes of the matrix."""
    kernels = load_kernels().quantized
    # Larger than the second-level cache in any format.
    shape = (57344, 4096) if settings.is_cuda else (70, 256)
    dtype = torch.bfloat16 if settings.is_cuda else torch.float32
    x = torch.zeros((num_rows, shape[1]), dtype=dtype, device=settings.torch_device)
    out = torch.empty((num_rows, shape[0]), dtype=dtype, device=settings.torch_device)
    if name == "dense":
        weight = torch.zeros(shape, dtype=dtype, device=settings.torch_device)
        return (in_graph_us(lambda: torch.mm(x, weight.t(), out=out), settings), "vendor product",
                weight.nbytes)
    matrix, _ = random_quantized(name, *shape, settings.torch_device)
    workspace = kernels.ProductWorkspace.allocate([matrix.shape], num_rows, x.device)
    taken = in_graph_us(lambda: kernels.quantized_product(x, matrix, workspace, out=out), settings)
    return taken, "", matrix.nbytes


def measure_quantized(report: Report, copy_bytes_per_s: float) -> None:
    """One product of the size of an 8B model's gate and up, twice, beside the vendor's."""
    names = ["dense", "Q8_0", "Q4_1", "Q4_K", "Q4_0"]
    for name in names[:3] if report.settings.is_quick else names:
        for num_rows in (16,) if name == "dense" else (1, 16, 64):
            def timing(name: str = name, num_rows: int = num_rows) -> tuple[float, str]:
                taken, remark, size = _row_us(report.settings, name, num_rows)
                share = 100.0 * size / (taken * 1e-6) / copy_bytes_per_s
                return taken, f"{share:.0f}% of the copy bandwidth  {remark}".strip()

            report.measure("products", f"{name}, {num_rows} rows", "us", timing)
