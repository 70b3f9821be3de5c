"""Chat templates: messages to the text that the model was trained on.

A template is jinja2 source from the model file. It runs in
:mod:`flarecore.tokenizer.template_sandbox` with the variables and functions that
`transformers` gives it, so that both render the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from flarecore.errors import ConfigError
from flarecore.tokenizer.special_mask import strings_of

__all__ = ["ChatTemplate", "plain_messages"]

_MAX_SOURCE = 1 << 20  # characters
_MAX_DEPTH = 32  # of nested lists and mappings in a message


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages as fresh dicts, lists, strings, numbers, bools and None.

    Raises
    ------
    ConfigError
        They are no sequence of mappings with a ``"role"``, or hold something else.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise ConfigError(f"messages must be a list of mappings, got {type(messages).__name__}")
    plain: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ConfigError(f"messages[{i}] must be a mapping, got {type(message).__name__}")
        if not isinstance(message.get("role"), str):
            raise ConfigError(
                f"messages[{i}] must have a 'role' that is a str, got {message.get('role')!r}"
            )
        plain.append(_plain(message, f"messages[{i}]", 0))
    return plain


def _plain(value: Any, where: str, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ConfigError(f"{where} is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(f"{where} has the key {key!r}; keys must be strings")
        return {str(k): _plain(v, f"{where}[{k!r}]", depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
    raise ConfigError(f"{where} must be text, a number, a list or a mapping, got {value!r:.80}")


class ChatTemplate:
    """A compiled chat template. Thread-safe.

    Parameters
    ----------
    source : str
        jinja2 source.
    tokens : mapping of str to str
        Texts of special tokens by the names that templates use: ``bos_token``, ``eos_token``, …

    Raises
    ------
    ConfigError
        The source is no valid template; the message gives the line.
    """

    def __init__(self, source: str, tokens: Mapping[str, str] | None = None) -> None:
        from flarecore.tokenizer.template_sandbox import BoundedEnvironment

        if len(source) > _MAX_SOURCE:
            raise ConfigError(
                f"the chat template has {len(source)} characters; the limit is {_MAX_SOURCE}"
            )
        self.source = source
        self._tokens = dict(tokens or {})
        self._template = _guarded(lambda: BoundedEnvironment().from_string(source))

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str:
        """The conversation as text.

        Raises
        ------
        ConfigError
            The messages are malformed, or the template failed, refused them or did too much work.
        """
        return self.render_plain(plain_messages(messages), add_generation_prompt)

    def render_plain(self, messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
        """The same for what :func:`plain_messages` returned."""
        from flarecore.tokenizer.template_bounds import rendering_bounds

        def run() -> Any:
            with rendering_bounds(sum(map(len, strings_of(messages)))):
                return self._template.render(
                    messages=messages,
                    add_generation_prompt=add_generation_prompt,
                    tools=None,
                    documents=None,
                    **self._tokens,
                )

        return str(_guarded(run))


def _guarded(run: Callable[[], Any]) -> Any:
    """Runs jinja2; whatever it raises becomes a ConfigError that says where."""
    from jinja2.exceptions import TemplateSyntaxError

    from flarecore.tokenizer.template_sandbox import TemplateRefusal

    try:
        return run()
    except TemplateSyntaxError as error:
        raise ConfigError(
            f"the chat template is not valid, line {error.lineno}: {error.message}"
        ) from error
    except TemplateRefusal as error:
        raise ConfigError(
            f"the chat template refused the messages{_where(error)}: {str(error)[:500]}"
        ) from error
    except Exception as error:  # templates can raise anything: types, recursion, memory
        raise ConfigError(
            f"the chat template failed{_where(error)}: {type(error).__name__}: {str(error)[:500]}"
        ) from error


def _where(error: BaseException) -> str:
    """ ", line N" of the template, from the traceback that jinja2 rewrote."""
    line: int | None = None
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return "" if line is None else f", line {line}"
