"""Traces of scripted answers, and pages taken apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

from scripted_model import FakeClock, Lists, Say, ScriptedEngine, ScriptedRetriever
from test_controller import LOW, PAPER

from flarecore.config import FlareConfig
from flarecore.flare import Flare
from flarecore.retrieval.passage import Passage
from flarecore.trace import Trace

_VOID = {"meta", "link", "br", "hr"}


def example_trace(question: str = "When was Ada born?", **options) -> Trace:
    """A confident sentence, one written again, one without evidence, and the end."""
    clock = FakeClock()

    def wait(seconds: float) -> Callable[[], None]:
        def before() -> None:
            clock.now += seconds
        return before

    script = Lists(
        [Say(" Ada was a poet.", before=wait(1)),
         Say(" She was born in 1913 in Rome.", low=LOW, before=wait(2)),
         Say(" She died in 1913.", low=LOW, before=wait(1)), Say(stop="eos", before=wait(0.5))],
        [Say(" She was born in 1912 in Bern.", before=wait(1.5))])

    class Retriever(ScriptedRetriever):
        def search(self, queries, k, filter=None):
            clock.now += 0.25
            return super().search(queries, k, filter)

    retriever = Retriever(
        [Passage("ada-1", "Ada was born in Bern in the winter of 1912.", "Ada: life", 0.75),
         Passage("ada-2", "The winter was cold. " * 40, "Winters", 0.5),
         Passage("ada-3", "Ada was born in Bern in the winter of 1912.", "The same again", 0.25)],
        [])
    options = {"theta": 0.5, "beta": 0.4, "template": PAPER, "initial_retrieval": False} | options
    flare = Flare(ScriptedEngine(script), retriever, FlareConfig(**options), clock=clock)
    trace = flare.generate(question, scope="Ada", filter={"lang": "en"}).trace
    assert [s.outcome for s in trace.sentences] == ["draft", "regenerated", "draft", "nothing"]
    return trace


def change_texts(value, change: Callable[[str], str]):
    """A trace or a part of it with every text replaced."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, (list, tuple)):
        return tuple(change_texts(item, change) for item in value)
    if isinstance(value, dict):
        return {name: change_texts(item, change) for name, item in value.items()}
    if dataclasses.is_dataclass(value):
        return dataclasses.replace(value, **{
            f.name: change_texts(getattr(value, f.name), change)
            for f in dataclasses.fields(value)})
    return value


@dataclass
class Element:
    """An element; `children` are elements and texts."""

    name: str
    attributes: dict[str, str | None]
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text within."""
        return "".join(c if isinstance(c, str) else c.text for c in self.children)

    @property
    def classes(self) -> set[str]:
        return set((self.attributes.get("class") or "").split())

    def walk(self) -> Iterator[Element]:
        """This element and all within."""
        yield self
        for child in self.children:
            if isinstance(child, Element):
                yield from child.walk()

    def all(self, name: str = "", cls: str = "") -> list[Element]:
        """Elements within of that name (any if empty) and class."""
        return [e for e in self.walk() if e is not self and name in ("", e.name)
                and (not cls or cls in e.classes)]

    def one(self, name: str = "", cls: str = "") -> Element:
        """The only such element."""
        (found,) = self.all(name, cls)
        return found


class _Builder(HTMLParser):
    """Strict: what is opened must be closed, in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag, attrs):
        assert len(attrs) == len(dict(attrs)), f"an attribute of {tag} stands twice"
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open[-1].name == tag, f"</{tag}> in {self.open[-1].name}"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(data)

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data!r}")


def parse(page: str) -> Element:
    """The page as a tree."""
    assert page.startswith("<!DOCTYPE html>\n")
    builder = _Builder()
    builder.feed(page)
    builder.close()
    assert builder.open == [builder.root]
    return builder.root
