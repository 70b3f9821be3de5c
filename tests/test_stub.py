"""The stub of the native module against the module itself: names, and parameters of each call."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import flarecore
from flarecore import _C

STUB = ast.parse((Path(flarecore.__file__).parent / "_C.pyi").read_text(encoding="utf-8"))


def is_property(node: ast.FunctionDef) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list)


def parameters(node: ast.FunctionDef) -> list[str]:
    arguments = [*node.args.args, *node.args.kwonlyargs]
    return [a.arg for a in arguments if a.arg != "self"]


def native_parameters(call: object) -> list[str]:
    """Names from the signature that pybind11 writes into the docstring."""
    signature = (call.__doc__ or "").splitlines()[0]
    inside = signature[signature.index("(") + 1 : signature.rindex(") ->")]
    flat = re.sub(r"\[[^\[\]]*\]", "", re.sub(r"\[[^\[\]]*\]", "", inside))
    names = [part.split(":")[0].split("=")[0].strip() for part in flat.split(",")]
    return [name for name in names if name not in ("self", "*", "")]


def test_stub_names_what_the_module_has():
    in_stub = {node.name for node in STUB.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    in_module = {name for name in vars(_C) if not name.startswith("_")} - {"testing", "bench"}
    assert in_stub == in_module


def test_functions_take_what_the_stub_says():
    functions = [node for node in STUB.body if isinstance(node, ast.FunctionDef)]
    assert len(functions) > 5
    for node in functions:
        assert parameters(node) == native_parameters(getattr(_C, node.name)), node.name


def test_classes_have_what_the_stub_says():
    for class_node in STUB.body:
        if not isinstance(class_node, ast.ClassDef):
            continue
        native = getattr(_C, class_node.name)
        members = [node for node in class_node.body if isinstance(node, ast.FunctionDef)]
        named = {node.name for node in members}
        public = {name for name in vars(native) if not name.startswith("_")}
        assert public <= named, class_node.name
        for node in members:
            member = getattr(native, node.name)
            if is_property(node):
                assert isinstance(vars(native)[node.name], property), node.name
            elif not node.name.startswith("__") or node.name == "__init__":
                where = f"{class_node.name}.{node.name}"
                assert parameters(node) == native_parameters(member), where
