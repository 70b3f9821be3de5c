"""Build of the native CPU module: only what TOML cannot say.

Sources are found by folder. A file whose stem ends in ``_avx2`` or ``_avx512`` gets that level's
flags and no other file does, so that the module starts on every x86-64 machine and picks a level
at run time. Objects are rebuilt when a header they include is newer (``.d`` files, written by the
compiler).
"""

import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pybind11.setup_helpers import Pybind11Extension
from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent.resolve()
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
ISA_FLAGS = {
    "_avx2": ["-mavx2", "-mfma", "-mf16c"],
    "_avx512": [
        "-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl",
        "-mavx512vnni", "-mprefer-vector-width=512",
    ],
}
# ffp-contract=off: a multiply and an add are fused only where the source says so; otherwise two
# instantiations of one kernel could round differently and break bit-identity between row counts.
COMMON_FLAGS = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-Wall",
                "-Wextra", "-Wno-unused-parameter", "-pthread"]


def isa_of(source: str) -> str | None:
    stem = Path(source).stem
    return next((suffix for suffix in ISA_FLAGS if stem.endswith(suffix)), None)


def native_sources() -> list[str]:
    found = sorted(p.relative_to(ROOT) for p in (ROOT / "csrc").rglob("*.cpp"))
    found = [p for p in found if p.parts[1] != "cuda"]
    return [str(p) for p in found if IS_X86 or isa_of(str(p)) is None]


def is_stale(obj: Path) -> bool:
    """True if the object is missing or older than this file or one in its dependency list."""
    dependencies = obj.with_suffix(".d")
    if not obj.exists() or not dependencies.exists():
        return True
    listed = dependencies.read_text().split(":", 1)[1].replace("\\\n", " ").split()
    built = obj.stat().st_mtime
    return any(not Path(n).exists() or Path(n).stat().st_mtime > built for n in [*listed, __file__])


class BuildExt(build_ext):
    def finalize_options(self):
        super().finalize_options()
        # One place for objects, also when pip builds in a temporary folder: only what is stale is
        # compiled again. The linker always runs, since only is_stale() looks at headers.
        self.build_temp = str(ROOT / "build" / f"objects-{sys.implementation.cache_tag}")
        self.force = True

    def build_extension(self, ext):
        self.compiler.compile = self._compile_parallel
        super().build_extension(ext)

    def _compile_parallel(self, sources, output_dir=None, macros=None, include_dirs=None, debug=0,
                          extra_preargs=None, extra_postargs=None, depends=None):
        compiler = self.compiler
        _, objects, extra, pp_opts, build = compiler._setup_compile(
            output_dir, macros, include_dirs, sources, depends, extra_postargs)
        cc_args = compiler._get_cc_args(pp_opts, debug, extra_preargs)

        def compile_one(obj):
            if not is_stale(Path(obj)):
                return
            src, ext = build[obj]
            level = isa_of(src)
            flags = list(extra) + (ISA_FLAGS[level] if level else [])
            flags += ["-MMD", "-MF", str(Path(obj).with_suffix(".d"))]
            compiler._compile(obj, src, ext, cc_args, flags, pp_opts)

        jobs = int(os.environ.get("FLARECORE_BUILD_JOBS", os.cpu_count() or 1))
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(compile_one, objects))
        return objects


class BuildPy(build_py):
    """Carries the Triton kernels into a wheel: `kernels` would be no name for a package there."""

    def finalize_options(self):
        super().finalize_options()
        self.packages = [*self.packages, "flarecore._kernels"]
        self.package_dir = {**(self.package_dir or {}), "flarecore._kernels": "kernels"}


extension = Pybind11Extension(
    "flarecore._C", native_sources(), include_dirs=["csrc"], cxx_std=17,
    extra_compile_args=COMMON_FLAGS, extra_link_args=["-pthread"],
    define_macros=[("FLARECORE_X86", "1")] if IS_X86 else [])

setup(ext_modules=[extension], cmdclass={"build_ext": BuildExt, "build_py": BuildPy})
