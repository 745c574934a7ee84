"""The one exception for what a user can put right."""


class UserError(Exception):
    """Bad input, refused at the door.

    The message is one sentence that names the file, line or key, what was wrong and what would be right. The command
    line prints it without a traceback and exits with code 2.
    """
