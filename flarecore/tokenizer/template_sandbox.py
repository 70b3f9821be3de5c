"""The jinja2 environment of chat templates: what they expect, sandboxed and bounded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from flarecore.tokenizer import template_bounds as bounds

__all__ = ["BoundedEnvironment", "TemplateRefusal"]

# Not needed by any chat template, and able to make much out of little.
_BLOCKED_FILTERS = ("center", "filesizeformat", "pprint", "urlize", "wordwrap", "xmlattr")


class TemplateRefusal(TemplateError):
    """The template called raise_exception(message)."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Renders within the bounds of :mod:`flarecore.tokenizer.template_bounds`, else SecurityError.

    Offers what `transformers` offers to chat templates: ``tojson`` without HTML escapes,
    ``raise_exception``, ``strftime_now``, ``{% break %}``, ``{% generation %}``; block tags eat
    the newline after and the indentation before them.
    """

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        # Without the optimiser: it would evaluate constant expressions while compiling, unbounded.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[_Generation, loopcontrols],
        )
        for name in _BLOCKED_FILTERS:
            self.filters.pop(name, None)
        self.filters["tojson"] = _to_json
        self.filters = {name: _bounded_filter(name, f) for name, f in self.filters.items()}
        self.globals.pop("lipsum", None)
        self.globals["dict"] = lambda *args, **kwargs: dict(*args, **kwargs)
        self.globals["namespace"] = _SafeNamespace
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Puts a step at the start of every loop and macro."""
        tree = super()._parse(source, name, filename)
        for node in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
            step = nodes.Call(nodes.EnvironmentAttribute("step"), [], [], None, None)
            assert isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock))
            node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
            if isinstance(node, nodes.For) and node.test is not None:
                node.test = nodes.And(step, node.test, lineno=node.lineno)
        return tree

    # Called by the generated code.

    step = staticmethod(bounds.step)
    made = staticmethod(bounds.made)

    @staticmethod
    def concat(parts: Iterable[Any]) -> str:  # type: ignore[override]
        """Joins the output of the template, of a macro or of ``~``."""
        texts: list[str] = []
        size = 0
        for part in parts:
            texts.append(str(part))
            size += len(texts[-1])
            bounds.check_text(size)
        bounds.spend(size)
        return "".join(texts)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        bounds.check_operator(operator, left, right)
        return bounds.made(super().call_binop(context, operator, left, right))

    # The underscores keep the names free for the template's own keyword arguments.
    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        method = getattr(__obj, "__wrapped__", __obj)  # str.format comes wrapped by the sandbox
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            bounds.check_method(owner, method.__name__, args)
        return bounds.made(super().call(__context, __obj, *args, **kwargs))


class _BoundedGenerator(CodeGenerator):
    """Sends what expressions make through the environment's checks."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._write_made(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._write_made(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._write_made(super().visit_Tuple, node, frame)
        else:  # the targets of an assignment
            super().visit_Tuple(node, frame)

    def _write_made(self, visit: Callable[[Any, Frame], None], node: Any, frame: Frame) -> None:
        self.write("environment.made(")
        visit(node, frame)
        self.write(")")


BoundedEnvironment.code_generator_class = _BoundedGenerator


class _Generation(Extension):
    """``{% generation %}…{% endgeneration %}``, which marks the assistant's text for training."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _SafeNamespace(Namespace):
    """Without underscored attributes, by which jinja2 and Python mark what is safe to call."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # as in jinja2: "self" may be an attribute
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _SafeNamespace._check(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _SafeNamespace._check(name)
        super().__setitem__(name, value)

    @staticmethod
    def _check(name: Any) -> None:
        if not isinstance(name, str) or name.startswith("_"):
            raise SecurityError(f"a namespace may not have the attribute {name!r}")


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with its arguments checked and its result charged."""
    num_passed = 1 if hasattr(function, "jinja_pass_arg") else 0  # a context comes first

    @wraps(function)  # copies the mark that makes jinja2 pass the context
    def bounded(*args: Any, **kwargs: Any) -> Any:
        context, given = args[:num_passed], args[num_passed:]
        if name == "join" and given and not isinstance(given[0], str):
            given = (list(given[0]), *given[1:])  # may be a generator, which can be read once
        bounds.check_filter(name, given, kwargs)
        if given and isinstance(given[0], (str, list, tuple, dict, range)):
            bounds.spend(len(given[0]))
        result = function(*context, *given, **kwargs)
        if isinstance(result, (list, tuple, dict)):
            bounds.spend(len(result))
            return result
        return bounds.made(result)

    return bounded


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of jinja2's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: Any) -> None:
    raise TemplateRefusal(str(message))
