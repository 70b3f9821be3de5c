"""Ways to write an answer with retrieval, FLARE and the baselines it is compared with.

All of them run on the same engine, retriever, evidence, templates, budgets and traces, and are used
like :class:`flarecore.Flare`::

    method = make_method("previous-window", engine, retriever, window_tokens=16)
    result = method.generate("Who built the lighthouse of Marrow Point?")
"""

from flarecore.methods.method import Method, make_method
from flarecore.methods.registry import METHODS
from flarecore.methods.spec import MethodSpec, OwnOption

__all__ = ["METHODS", "Method", "MethodSpec", "OwnOption", "make_method"]
