"""Checks and times the GPU engine on one card: python benchmarks/gpu_check.py [--json FILE].

Without a card, ``--device cpu`` runs the script at tiny sizes in Triton's interpreter.
"""

import os
import sys
from pathlib import Path

if {"cpu", "--device=cpu"} & set(sys.argv):  # before anything can import triton
    os.environ.setdefault("TRITON_INTERPRET", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from flarecore.bench.gpu.main import main

if __name__ == "__main__":
    sys.exit(main())
