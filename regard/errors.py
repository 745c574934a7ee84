"""The exception for errors that a user can correct."""

from typing import Literal

ErrorKind = Literal["bad", "image", "pixels"]
"""Kind of an error; "bad" is the general one."""


class UserError(Exception):
    """Invalid input.

    The message is one sentence that names the file, line or key, the problem, and the correct form. The command line
    prints it without a traceback and exits with code 2.

    Attributes:
        kind: Kind of the error, by which the web page translates the message.
    """

    kind: ErrorKind = "bad"
