"""The exception for errors that a user can correct, such as a missing optional package."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Literal

ErrorKind = Literal["bad", "image", "pixels"]
"""Kind of an error; "bad" is the general one."""

MAX_MESSAGE = 1000
"""Characters of an error message, which may quote a file."""


class UserError(Exception):
    """Invalid input.

    The message is one sentence that names the file, line or key, the problem, and the correct form. The command line
    prints it without a traceback and exits with code 2.

    Attributes:
        kind: Kind of the error, by which the web page translates the message.
    """

    kind: ErrorKind = "bad"

    def __init__(self, message: str) -> None:
        super().__init__(message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}…")


@contextmanager
def prefix_errors(prefix: object) -> Iterator[None]:
    """Prefix the user errors of the block, such as with an option or a path, unless they contain the prefix."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error) if str(prefix) in str(error) else f"{prefix}: {error}") from None


def import_optional(module: str, extra: str, purpose: str = "this") -> Any:
    """Import a module of a package that is installed with an extra of regard; the error says for which purpose."""
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise UserError(
            f"{purpose} needs the package {package}; install it with pip install 'regard[{extra}]'"
        ) from None


def one_line(error: object) -> str:
    """Return the start of an error message without line breaks."""
    return " ".join(str(error).split())[:200]
