"""What ``benchmarks/gpu_check.py`` runs: checks and timings of the GPU engine."""
