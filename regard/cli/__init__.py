"""The command line: one file per command. Commands import their dependencies when they run, so `--help` is fast."""

import errno
import logging
import sys
from collections.abc import Callable
from functools import wraps
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer

from regard.cli.average import average
from regard.cli.bench import bench
from regard.cli.calibrate import calibrate
from regard.cli.classify import classify
from regard.cli.clean import clean
from regard.cli.demo import demo
from regard.cli.distill import distill
from regard.cli.embed import embed
from regard.cli.evaluate import evaluate
from regard.cli.export import export
from regard.cli.import_ import import_
from regard.cli.key import key
from regard.cli.look import look
from regard.cli.new import new
from regard.cli.options import add_options
from regard.cli.plan import plan
from regard.cli.plot import plot
from regard.cli.serve import serve
from regard.cli.train import train
from regard.cli.translate import translate
from regard.errors import UserError
from regard.registry import import_extensions

app = typer.Typer(
    name="regard",
    help="Train, inspect and serve attention models.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
COMMANDS = (
    *(demo, train, plot, average, distill, translate, classify, embed, evaluate, calibrate, look, bench, export),
    *(serve, key, new, clean, plan),
)
WITHOUT_MODELS = (demo, plot, key, new)
"""Commands that load no model of the user, and so no extension."""

Extensions = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="FILE",
        help="file with models, attention kinds, objectives or tasks of your own; repeatable",
    ),
]


def add_import_option(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: add --import, whose files and packages are imported before the command runs."""

    @wraps(command)
    def with_extensions(**values: Any) -> None:
        if extensions := values.pop("extensions"):
            import_extensions(extensions)
        command(**values)

    return add_options(with_extensions, command, {"extensions": Extensions})


for command in COMMANDS:
    app.command()(command if command in WITHOUT_MODELS else add_import_option(command))
app.command("import")(import_)

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PATH_ERRORS = (
    *(errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
    *(errno.ENAMETOOLONG, errno.ELOOP),
)
"""Operating system errors that are caused by a path and not by a bug."""


def main() -> None:
    """Run the command line. Errors that a user can correct are one sentence, with exit code 2."""
    logger = logging.getLogger("regard")
    logger.handlers = [_WarningHandler(logging.WARNING)]
    for stream, errors in ((sys.stdout, "surrogateescape"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):  # the names of files need not be valid UTF-8
            stream.reconfigure(errors=errors)
    try:
        # Typer returns 130 for Ctrl-C, and exits silently if the reader of a pipe, such as `head`, has closed it.
        code = app(standalone_mode=False)
    except UserError as error:
        _exit(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except OSError as error:
        if error.errno in FULL_DISK:  # errors of writing, which do not name the file
            _exit(f"{error.filename or 'a file'} cannot be written ({error.strerror}); free some space")
        if error.errno not in PATH_ERRORS or not error.filename:
            raise
        _exit(f"{error.filename}: {error.strerror}; give another path")
    except Exception as error:
        format_message = getattr(error, "format_message", None)  # Typer's usage errors; their class varies by version
        if format_message is None:
            raise
        command = getattr(getattr(error, "ctx", None), "command_path", None) or "regard"
        _exit(f"{format_message().rstrip('.')}; see {command} --help")
    if code == 130:
        sys.stderr.write("regard: interrupted\n")
    sys.exit(code if isinstance(code, int) else 0)


class _WarningHandler(logging.Handler):
    """Prints the warnings of the library like errors."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"regard: {' '.join(record.getMessage().split())}\n")


def _exit(message: str) -> NoReturn:
    sys.stderr.write(f"regard: {' '.join(message.split())}\n")
    sys.exit(2)


@app.callback(invoke_without_command=True)
def regard(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False,
) -> None:
    """Handle the options that belong to no command."""
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"regard {installed('regard')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
