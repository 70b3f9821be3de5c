"""Build of the native modules: only what TOML cannot say.

``flarecore._C``: sources are found by folder. A file whose stem ends in ``_avx2``, ``_avx512`` or
``_amx`` gets that level's flags and no other file does, so that the module starts on every x86-64
machine and picks a level at run time. A compiler that does not know AMX builds without that level
and says so.

``flarecore._cuda`` is built where nvcc can build it, and skipped with one line where not;
FLARECORE_CUDA=1 makes that an error, FLARECORE_CUDA=0 never builds it.

Objects are rebuilt when a header they include is newer (``.d`` files, written by the compilers).
"""

import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

from pybind11.setup_helpers import Pybind11Extension, has_flag
from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import BaseError, CompileError

ROOT = Path(__file__).parent.resolve()
sys.dont_write_bytecode = True  # a folder in csrc/ that changes would look like new sources
sys.path.insert(0, str(ROOT / "csrc" / "cuda"))
import nvcc_toolchain  # noqa: E402

CUDA_MODULE = "flarecore._cuda"
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
AVX2_FLAGS = ["-mavx2", "-mfma", "-mf16c"]
AVX512_FLAGS = [*AVX2_FLAGS, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl",
                "-mavx512vnni", "-mprefer-vector-width=512"]
AMX_FLAGS = ["-mamx-tile", "-mamx-bf16"]
ISA_FLAGS = {"_avx2": AVX2_FLAGS, "_avx512": AVX512_FLAGS, "_amx": [*AVX512_FLAGS, *AMX_FLAGS]}
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


def cuda_sources() -> list[str]:
    folder = ROOT / "csrc" / "cuda"
    found = [*sorted(folder.glob("*.cpp")), *nvcc_toolchain.SOURCES]
    return [str(p.relative_to(ROOT)) for p in found] + ["csrc/bindings/cuda_arguments.cpp"]


def is_stale(obj: Path, *more: str) -> bool:
    """True if the object is missing or older than a file in its dependency list, this or `more`."""
    dependencies = obj.with_suffix(".d")
    if not obj.exists() or not dependencies.exists():
        return True
    listed = dependencies.read_text().split(":", 1)[1].replace("\\\n", " ").split()
    built = obj.stat().st_mtime
    return any(not Path(n).exists() or Path(n).stat().st_mtime > built
               for n in [*listed, *more, __file__])


def compile_cuda(source: str, obj: Path) -> None:
    if not is_stale(obj, nvcc_toolchain.__file__):
        return
    obj.parent.mkdir(parents=True, exist_ok=True)
    command = nvcc_toolchain.find().compile_command(source, obj)
    run_nvcc([*command, "-MMD", "-MF", str(obj.with_suffix(".d"))])


def run_nvcc(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise CompileError(f"{' '.join(command)}\n{result.stdout}{result.stderr}")


class BuildExt(build_ext):
    user_options: ClassVar = [
        *build_ext.user_options, ("only=", None, "build one module: _C or _cuda")]

    def initialize_options(self):
        super().initialize_options()
        self.only = None

    def finalize_options(self):
        super().finalize_options()
        # One place for objects, also when pip builds in a temporary folder: only what is stale is
        # compiled again. The linker always runs, since only is_stale() looks at headers.
        self.build_temp = str(ROOT / "build" / f"objects-{sys.implementation.cache_tag}")
        self.force = True

    def run(self):
        if self.only is not None:
            self.extensions = [e for e in self.extensions if e.name == f"flarecore.{self.only}"]
        if any(e.name == CUDA_MODULE for e in self.extensions):
            self._decide_on_cuda()
        super().run()

    def _decide_on_cuda(self):
        mode = nvcc_toolchain.mode()
        if mode == "0":
            self._leave_out_cuda("FLARECORE_CUDA=0")
            return
        try:
            nvcc_toolchain.find()
        except nvcc_toolchain.NvccUnavailable as error:
            if mode == "1":
                raise SystemExit(f"FLARECORE_CUDA=1, but {CUDA_MODULE} cannot be built: {error}") \
                    from error
            self._leave_out_cuda(error)

    def _leave_out_cuda(self, reason):
        print(f"· {CUDA_MODULE} is left out: {reason}", flush=True)
        # What an earlier build left would be of other sources.
        for extension in self.extensions:
            if extension.name == CUDA_MODULE:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
        self.extensions = [e for e in self.extensions if e.name != CUDA_MODULE]

    def build_extensions(self):
        self.compiler.src_extensions.append(".cu")
        # A compiler that fails is an error for the core, and for the CUDA module if it was forced.
        for extension in list(self.extensions):
            try:
                self.build_extension(extension)
            except (BaseError, nvcc_toolchain.NvccUnavailable) as error:
                if extension.name != CUDA_MODULE or nvcc_toolchain.mode() == "1":
                    raise
                self._leave_out_cuda(f"it did not compile\n{error}")

    def build_extension(self, ext):
        self.isa_flags = dict(ISA_FLAGS)
        knows_amx = ext.name == CUDA_MODULE or not IS_X86 or all(
            has_flag(self.compiler, flag) for flag in AMX_FLAGS)
        if not knows_amx:
            print("flarecore: this compiler does not know AMX; the module gets no 'amx' level")
            self.isa_flags["_amx"] = AVX512_FLAGS
        self.compiler.compile = self._compile_parallel
        usual = self.compiler.link_shared_object
        if ext.name == CUDA_MODULE:
            self.compiler.link_shared_object = self._link_cuda
        super().build_extension(ext)
        self.compiler.link_shared_object = usual

    def _link_cuda(self, objects, output_filename, *args, **kwargs):
        Path(output_filename).parent.mkdir(parents=True, exist_ok=True)
        run_nvcc(nvcc_toolchain.find().link_command(objects, output_filename))

    def _compile_parallel(self, sources, output_dir=None, macros=None, include_dirs=None, debug=0,
                          extra_preargs=None, extra_postargs=None, depends=None):
        compiler = self.compiler
        if any(source.endswith(".cu") for source in sources):
            nvcc = nvcc_toolchain.find()
            names = ", ".join(f"sm_{n}" for n in nvcc.architectures)
            macros = [*macros, ("FLARECORE_NVCC_VERSION", f'"{nvcc.version}"'),
                      ("FLARECORE_CUDA_ARCHITECTURES", f'"{names}"')]
            output_dir = str(Path(output_dir) / nvcc.key)
        _, objects, extra, pp_opts, build = compiler._setup_compile(
            output_dir, macros, include_dirs, sources, depends, extra_postargs)
        cc_args = compiler._get_cc_args(pp_opts, debug, extra_preargs)

        def compile_one(obj):
            src, ext = build[obj]
            if ext == ".cu":
                compile_cuda(src, Path(obj))
                return
            if not is_stale(Path(obj)):
                return
            level = isa_of(src)
            flags = list(extra) + (self.isa_flags[level] if level else [])
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


def extension(name: str, sources: list[str]) -> Pybind11Extension:
    return Pybind11Extension(
        name, sources, include_dirs=["csrc"], cxx_std=17, extra_compile_args=COMMON_FLAGS,
        extra_link_args=["-pthread"], define_macros=[("FLARECORE_X86", "1")] if IS_X86 else [])


setup(ext_modules=[extension("flarecore._C", native_sources()),
                   extension(CUDA_MODULE, cuda_sources())],
      cmdclass={"build_ext": BuildExt, "build_py": BuildPy})
