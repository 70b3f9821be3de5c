"""The argument parser of the commands: its errors are as short as what was wrong allows."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from flarecore.validation import suggestion

__all__ = ["CommandParser"]


class CommandParser(argparse.ArgumentParser):
    """Names the option that was meant, and shows the usage only where it tells more.

    argparse tells of an unknown option last, with the usage of the whole program: here the command
    that was called does, before it asks for what is missing.
    """

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As argparse's, but unknown options of a command end it here."""
        if self._subparsers is None:
            self._check_names(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def _check_names(self, args: Sequence[str]) -> None:
        known = self._option_string_actions
        for text in args:
            if text == "--":
                return
            name = text.partition("=")[0]
            # argparse takes nothing of this form for the value of an option or an argument.
            if text.startswith("--") and " " not in text and name not in known:
                names = [option for option in known if option.startswith("--")]
                self.error(f"unknown option {name}{suggestion(name, names)}")

    def error(self, message: str) -> NoReturn:
        """Prints the error and ends the process with code 2.

        A wrong value has been named with what is right; dozens of lines of usage would hide it.
        """
        shown = f"{self.prog}: error: {message}\n"
        if not message.startswith("argument "):
            self.print_usage(sys.stderr)
        self.exit(2, f"{shown}hint: '{self.prog} --help' lists the options\n")
