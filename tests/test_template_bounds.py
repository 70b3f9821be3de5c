"""Chat templates that fail, refuse or never want to end; messages that are none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from helpers_tokenizer import REASONING, conversation, mixed_strings, smollm2, toy

from flarecore.errors import ConfigError
from flarecore.tokenizer import Tokenizer
from flarecore.tokenizer.chat_template import ChatTemplate

BAD_MESSAGES: list[tuple[Any, str]] = [
    ("hello", "must be a list of mappings, got str"),
    ({"role": "user"}, "must be a list of mappings, got dict"),
    (["hello"], r"messages\[0\] must be a mapping"),
    ([{"content": "x"}], r"messages\[0\] must have a 'role'"),
    ([{"role": "user", "content": "x"}, {"role": 3}], r"messages\[1\] must have a 'role'"),
    ([{"role": "user", "content": b"x"}], r"messages\[0\]\['content'\] must be text"),
    ([{"role": "user", 3: "x"}], r"messages\[0\] has the key 3"),
]


@pytest.mark.parametrize(("messages", "error"), BAD_MESSAGES)
def test_bad_messages(messages: Any, error: str) -> None:
    for call in (smollm2().render_chat, smollm2().encode_chat):
        with pytest.raises(ConfigError, match=error):
            call(messages)


def test_deep_messages() -> None:
    nested: Any = "x"
    for _ in range(100):
        nested = [nested]
    with pytest.raises(ConfigError, match="32 levels"):
        smollm2().render_chat([{"role": "user", "content": nested}])


def test_messages_are_not_changed_and_may_be_any_mapping() -> None:
    class Message(Mapping[str, str]):
        def __getitem__(self, key: str) -> str:
            return {"role": "user", "content": "x"}[key]

        def __iter__(self) -> Any:
            return iter(("role", "content"))

        def __len__(self) -> int:
            return 2

    message = conversation("x")
    assert smollm2().render_chat((Message(),)) == smollm2().render_chat(message)  # type: ignore[arg-type]
    assert message == conversation("x")


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("a\n{% for %}", "not valid, line 2"),
        ("{{ x", "not valid, line 1"),
        ("\n\n{{ raise_exception('no system role') }}", "refused the messages, line 3: no system"),
        ("\n{{ 1 // 0 }}", "failed, line 2: ZeroDivisionError"),
        ("\n{{ messages[0].nope.deeper }}", "failed, line 2: UndefinedError"),
        ("{{ 3 | nofilter }}", "not valid, line 1: No filter named 'nofilter'"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ ''['__class__'] }}{{ cycler.__init__.__globals__ }}", "SecurityError"),
        ("{% set ns = namespace() %}{% set ns._x = 1 %}", "SecurityError"),
        ("{{ namespace(__call__=1) }}", "SecurityError"),
        ("{% include 'other' %}", "failed, line 1"),
        ("x" * (1 << 20) + "y", "1048577 characters; the limit is 1048576"),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "failed|not valid"),
    ],
)
def test_template_errors_say_where(source: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        ChatTemplate(source).render(conversation("x"))


def test_no_template() -> None:
    tokenizer = Tokenizer.from_metadata(toy())
    for call in (tokenizer.render_chat, tokenizer.encode_chat):
        with pytest.raises(ConfigError, match="no chat template"):
            call(conversation("x"))


# Hostile templates end soon

MANY = "range(99999)"
HOSTILE = {
    "range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "nested loops": "{% for i in R %}" * 3 + "{% endfor %}" * 3,
    "filtered loops": "{% for i in R if false %}{% endfor %}" * 50
    + "{% for i in R %}{% for i in R if i < 0 %}{% endfor %}{% endfor %}",
    "output": "{% for i in R %}{{ 'x' * 999 }}{% endfor %}",
    "recursive macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "macro tree": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "recursive loop": "{% for a in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "multiplied string": "{{ 'x' * 10 ** 12 }}",
    "multiplied list": "{{ 10 ** 12 * [1] }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "product": "{% set ns = namespace(x=3) %}"
    "{% for i in R %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "doubled string": "{% set x = 'x' %}" + "{% set x = x + x %}" * 60,
    "doubled by tilde": "{% set x = 'x' %}" + "{% set x = x ~ x %}" * 60,
    "doubled list": "{% set x = [1] %}" + "{% set x = x + x %}" * 60,
    "nested lists": "{% set x = 'x' %}" + "{% set x = [x, x] %}" * 60 + "{{ x }}",
    "nested dicts": "{% set x = 'x' %}" + "{% set x = {1: x, 2: x} %}" * 60 + "{{ x | tojson }}",
    "nested dict()": "{% set x = 'x' %}" + "{% set x = dict(a=x, b=x) %}" * 60 + "{{ x == x }}",
    "nested tuples": "{% set x = 'x' %}" + "{% set x = (x, x) %}" * 60 + "{{ x }}",
    "block set": "{% set x = 'x' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60,
    "macro output": "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}{% set x = 'x' %}"
    + "{% set x = f(x) %}" * 60,
    "replace": "{% set x = 'x' * 9999 %}{{ x.replace('x', x).replace('x', x) }}",
    "replace filter": "{% set x = 'x' * 9999 %}{{ x | replace('x', x) | replace('x', x) }}",
    "join": "{% set x = 'x' * 9999 %}{{ x.join(R | map('string') | list) }}",
    "join filter": "{% set x = 'x' * 9999 %}{{ R | join(x) }}",
    "ljust": "{{ 'x'.ljust(10 ** 12) }}",
    "zfill": "{{ 'x'.zfill(10 ** 12) }}",
    "format": "{{ '{:>999999999999}'.format(1) }}",
    "nested format": "{{ '{:{}}'.format(1, 10 ** 12) }}",
    "percent": "{{ '%999999999999d' % 1 }}",
    "percent star": "{{ '%*d' % (10 ** 12, 1) }}",
    "format filter": "{{ '%999999999999d' | format(1) }}",
    "indent": "{{ 'a\nb' | indent(10 ** 12) }}",
    "tojson indent": "{{ [1] | tojson(indent=10 ** 12) }}",
    "translate": "{{ ('x' * 9999).translate({120: 'x' * 9999}) }}",
    "center": "{{ 'x' | center(10 ** 12) }}",
    "lipsum": "{{ lipsum(n=10 ** 9) }}",
    "round": "{{ 1.5 | round(10 ** 9, 'floor') }}",
    "batch": "{{ [1] | batch(10 ** 12, 0) | list }}",
    "content": "{% for a in c %}" * 5 + "{% endfor %}" * 5,
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_stopped(name: str) -> None:
    source = "{% set c = messages[0].content %}" + HOSTILE[name].replace("R", MANY)
    with pytest.raises(ConfigError, match=r"the chat template (failed|is not valid)"):
        ChatTemplate(source).render(conversation("content " * 100))


def test_bounds_are_per_rendering_and_leave_long_conversations_alone() -> None:
    contents = [text * 20 for text in mixed_strings(600, seed=10)]
    template = ChatTemplate(REASONING)
    first = template.render(conversation(*contents))
    assert len(first) > 300_000
    assert template.render(conversation(*contents)) == first


def test_only_the_listed_filters_are_missing() -> None:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    from flarecore.tokenizer.template_sandbox import _BLOCKED_FILTERS, BoundedEnvironment

    missing = set(ImmutableSandboxedEnvironment().filters) - set(BoundedEnvironment().filters)
    assert missing == set(_BLOCKED_FILTERS)
