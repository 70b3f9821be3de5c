"""The slow, obvious twins of the native core that tests and benchmarks compare with.

Nothing here is imported by the rest of flarecore; numpy is enough except where a module says
otherwise (``gguf_weights`` needs the ``gguf`` package, ``transformers_backend`` torch and
transformers).
"""
