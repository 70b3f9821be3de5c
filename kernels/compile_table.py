"""Compile every kernel for sm_80 and sm_90 without a GPU and keep what ptxas says in COMPILED.md.

    python -m kernels.compile_table            # compile, write kernels/COMPILED.md
    python -m kernels.compile_table --check    # compile, compare the rows, write nothing

Both fail if a kernel spills registers or does not fit into shared memory; --check also fails if the
table lacks a row or, for the same Triton version, has other figures. TRITON_INTERPRET must be
unset.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from . import (
    attention_decode,
    attention_prefill,
    norm,
    quantized_product,
    quantized_values,
    rope,
    sampling,
    sampling_filters,
    swiglu,
)
from .checks import INTERPRETED
from .quantized_format import FORMATS, QuantizedFormat

TABLE = Path(__file__).with_name("COMPILED.md")
PTXAS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
# Largest shared memory of one program, bytes (CUDA C++ programming guide, compute capabilities).
MAX_SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024}

# Pointers that do not follow the case's dtype, and scalars that are not int32.
TYPES = {
    "positions_ptr": "*i32", "query_begin_ptr": "*i32", "block_table_ptr": "*i32",
    "table_rows_ptr": "*i32", "partial_ptr": "*fp32", "stats_ptr": "*fp32", "arrivals_ptr": "*i32",
    "cos_ptr": "*fp32", "sin_ptr": "*fp32", "token_flags_ptr": "*u8", "floats_ptr": "*fp32",
    "ints_ptr": "*i64", "tokens_ptr": "*i32", "flags_ptr": "*i32", "num_sampled_ptr": "*i32",
    "min_prob_ptr": "*fp32", "history_tokens_ptr": "*i32", "history_probs_ptr": "*fp32",
    "history_flags_ptr": "*u8", "chunk_max_ptr": "*fp32", "chunk_sum_ptr": "*i64",
    "chunk_arg_ptr": "*i32", "group_max_ptr": "*fp32", "counters_ptr": "*i32",
    "row_stats_ptr": "*fp64", "candidates_ptr": "*i64", "weights_ptr": "*i64",
    "layout_ptr": "*i32", "passage_ptr": "*i32", "token_ids_ptr": "*i32", "row_ids_ptr": "*i32",
    "supers_ptr": "*fp16", "scale": "fp32", "scale_log2": "fp32", "eps": "fp32",
    "weight_offset": "fp32", "bias_ptr": "*fp32",
}  # fmt: skip
OPTIONS = ("num_warps", "num_stages")


@dataclass(frozen=True)
class Case:
    """One kernel with its compile-time constants, launch options and element type."""

    label: str
    kernel: triton.runtime.JITFunction
    dtype: str
    constants: dict[str, int | bool | str | None]
    types: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Figures:
    """What ptxas reports of one compiled kernel."""

    registers: int
    spill_bytes: int
    shared_bytes: int


def _quantized_cases() -> list[Case]:
    """Every format through both kernels; one split and the most there are."""

    def types(form: QuantizedFormat) -> dict[str, str]:
        names = {torch.float16: "*fp16", torch.uint8: "*u8", torch.int8: "*i8"}
        codes = "*u8" if form.bits == 4 else "*i8"
        return {"codes_ptr": codes, "scales_ptr": names[form.scale_dtype]}

    found = []
    for name, form in FORMATS.items():
        for splits, dtype in ((1, torch.bfloat16), (16, torch.bfloat16), (16, torch.float16)):
            if form.is_two_level and dtype == torch.float16:
                continue  # as the plain formats of that type
            constants = quantized_product.product_constants(form, dtype, splits)
            kind = "bf16" if dtype == torch.bfloat16 else "fp16"
            found.append(Case(f"{name}, {splits} splits",
                              quantized_product._quantized_product_kernel, kind, constants,
                              types(form)))  # fmt: skip
        if name in ("Q4_1", "Q8_0"):
            constants = quantized_product.product_constants(form, torch.float32, 16)
            found.append(Case(f"{name}, 16 splits", quantized_product._quantized_product_kernel,
                              "fp32", constants, types(form)))  # fmt: skip
        for has_ids in (False, True):
            constants = quantized_values.dequantize_constants(form, has_ids)
            constants |= {} if has_ids else {"row_ids_ptr": None}
            label = f"{name}, rows by id" if has_ids else f"{name}, a run of rows"
            found.append(
                Case(label, quantized_values._dequantize_kernel, "bf16", constants, types(form))
            )
    return found


def cases() -> list[Case]:
    """Every kernel in the shapes of the models we aim at."""
    found = []
    for columns in (576, 4096):
        constants = norm.norm_constants(columns)
        for has_post in (False, True):
            label = f"hidden {columns}" + (", post-norm" if has_post else "")
            flags = {"HAS_RESIDUAL": True, "HAS_POST": has_post}
            found.append(Case(label, norm._rms_norm_kernel, "bf16", constants | flags))
        found.append(Case(f"hidden {columns}", norm._embed_norm_kernel, "bf16", constants))
    for gelu in (False, True):
        constants = {"GELU": gelu, "BLOCK": swiglu.BLOCK_COLUMNS, "num_warps": 4}
        label = "gelu_tanh" if gelu else "silu"
        found.append(Case(label, swiglu._gated_activation_kernel, "bf16", constants))
    for head_dim, has_norm in ((64, False), (128, True)):
        constants = rope.rope_constants(32, head_dim, False, has_norm)
        label = f"head_dim {head_dim}" + (", norm" if has_norm else "")
        found.append(Case(label + ", passages", rope._rope_store_kernel, "bf16",
                          rope.rope_constants(32, head_dim, False, has_norm, True)))  # fmt: skip
        found.append(Case(label, rope._rope_store_kernel, "bf16", constants))
    found.append(Case("head_dim 128, bias", rope._rope_store_kernel, "bf16",
                      rope.rope_constants(28, 128, False, False, False, True)))  # fmt: skip
    for head_dim, dtype in ((64, "fp16"), (128, "bf16"), (256, "bf16")):
        for passages in (False, True):
            label = f"head_dim {head_dim}, group 4" + (", passages" if passages else "")
            constants = attention_decode.decode_constants(32, 4, head_dim, passages)
            found.append(Case(label, attention_decode._decode_attention_kernel, dtype, constants))
            constants = attention_prefill.prefill_constants(4, head_dim, passages)
            found.append(
                Case(label, attention_prefill._prefill_attention_kernel, dtype, constants))
    for vocab, dtype, filters in ((49152, "bf16", False), (128256, "fp32", True),
                                  (262144, "bf16", True)):  # fmt: skip
        constants = sampling.sample_constants(triton.cdiv(vocab, sampling.CHUNK))
        constants |= {"HAS_CHOICE": filters, "HAS_FILTERS": filters, "ADVANCE": True}
        label = f"vocabulary {vocab}" + (", filters" if filters else "")
        found.append(Case(label, sampling._sample_kernel, dtype, constants))
    constants = sampling_filters.filter_constants() | {"ADVANCE": True}
    found.append(Case("any vocabulary", sampling_filters._filter_kernel, "fp32", constants))
    return found + _quantized_cases()


def compile_case(case: Case, capability: int) -> Figures:
    """Compile one case for one compute capability and read ptxas's figures."""
    constants = {k: v for k, v in case.constants.items() if k not in OPTIONS}
    options = {k: v for k, v in case.constants.items() if k in OPTIONS}
    names = case.kernel.arg_names
    signature, attributes = {}, {}
    for i, name in enumerate(names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        default = f"*{case.dtype}" if name.endswith("_ptr") else "i32"
        signature[name] = (TYPES | case.types).get(name, default)
        # As at launch: allocations and the strides between rows are multiples of 16.
        if name.endswith(("_ptr", "_stride")):
            attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=case.kernel, signature=signature, constexprs=constants, attrs=attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return _read_ptxas(compiled.asm["ptx"], compiled.metadata.shared)


def _read_ptxas(ptx: str, shared_bytes: int) -> Figures:
    architecture = re.search(r"^\.target\s+(\w+)", ptx, re.MULTILINE).group(1)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        command = [PTXAS, "-v", f"-arch={architecture}", source, "-o", target]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill", report)]
    registers = int(re.search(r"Used (\d+) registers", report).group(1))
    return Figures(registers, sum(spills), shared_bytes)


def render(rows: list[tuple[Case, int, Figures]]) -> str:
    """COMPILED.md as text."""
    lines = [
        "# What the compiler makes of the kernels",
        "",
        "Written by `python -m kernels.compile_table`; registers are per thread, spills in bytes, "
        "shared memory in bytes per program.",
        "",
        f"Triton {triton.__version__}",
        "",
        "| kernel | case | type | warps | architecture | registers | spills | shared memory |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case, capability, figures in rows:
        kernel = case.kernel.__name__.strip("_").removesuffix("_kernel")
        warps = case.constants["num_warps"]
        lines.append(
            f"| {kernel} | {case.label} | {case.dtype} | {warps} | sm_{capability} "
            f"| {figures.registers} | {figures.spill_bytes} | {figures.shared_bytes} |"
        )
    return "\n".join(lines) + "\n"


def problems(rows: list[tuple[Case, int, Figures]]) -> list[str]:
    """Cases that spill or ask for more shared memory than there is."""
    found = []
    for case, capability, figures in rows:
        name = f"{case.kernel.__name__} ({case.label}, {case.dtype}, sm_{capability})"
        if figures.spill_bytes:
            found.append(f"{name} spills {figures.spill_bytes} bytes of registers")
        if figures.shared_bytes > MAX_SHARED_BYTES[capability]:
            found.append(f"{name} needs {figures.shared_bytes} bytes of shared memory")
    return found


def differences(text: str) -> list[str]:
    """Why COMPILED.md is out of date against `text`; figures count for the same Triton only."""
    kept = TABLE.read_text() if TABLE.exists() else ""
    same_version = f"Triton {triton.__version__}\n" in kept

    def rows(table: str) -> set[tuple[str, ...]]:
        cells = [line.split(" | ") for line in table.splitlines() if " | sm_" in line]
        return {tuple(c if same_version else c[:5]) for c in cells}

    return [f"not in COMPILED.md: {' | '.join(row)}" for row in sorted(rows(text) - rows(kept))]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    check = parser.parse_args(arguments).check
    if INTERPRETED:
        print("unset TRITON_INTERPRET: interpreted kernels cannot be compiled", file=sys.stderr)
        return 2
    rows = [(case, cc, compile_case(case, cc)) for case in cases() for cc in MAX_SHARED_BYTES]
    text = render(rows)
    found = problems(rows) + (differences(text) if check else [])
    print(text)
    for problem in found:
        print(problem, file=sys.stderr)
    if not check:
        TABLE.write_text(text)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
