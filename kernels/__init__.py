"""Triton kernels of the GPU core: norms, RoPE with the KV store, paged attention, SwiGLU, sampler.

They know torch tensors and nothing of flarecore. Every file holds kernels, their launchers and the
launchers' checks; README.md in this folder has the shared conventions (layouts, padding rows,
determinism). A machine without a GPU runs them in Triton's interpreter: set TRITON_INTERPRET=1
before the first import of triton.
"""
