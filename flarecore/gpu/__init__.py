"""The GPU engine: the CPU engine's interface over Triton kernels and torch matrix products.

Nothing here imports torch or triton before a model is loaded with ``device="cuda"`` (or
``"interpreter"``, which runs the same code on CPU tensors in Triton's interpreter).
"""
