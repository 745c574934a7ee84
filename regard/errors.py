"""The one exception for what a user can put right."""

from typing import Literal

ErrorKind = Literal["bad", "image", "pixels"]
"""What is wrong, in one word; "bad" is whatever has no other."""


class UserError(Exception):
    """Bad input, refused at the door.

    The message is one sentence that names the file, line or key, what was wrong and what would be right. The command
    line prints it without a traceback and exits with code 2.

    Attributes:
        kind: what is wrong, for whoever says it in another language.
    """

    kind: ErrorKind = "bad"
