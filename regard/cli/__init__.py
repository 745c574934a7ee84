"""The command line. Each command imports what it needs when it runs, so that `regard --help` answers at once."""

from __future__ import annotations

import errno
import sys
from typing import Annotated, NoReturn

import typer

from regard.cli.bench import bench
from regard.cli.classify import classify
from regard.cli.distill import distill
from regard.cli.evaluate import evaluate
from regard.cli.export import bring_in, export
from regard.cli.look import look
from regard.cli.plot import plot
from regard.cli.serve import key, serve
from regard.cli.train import average, demo, train
from regard.cli.translate import embed, translate

app = typer.Typer(
    name="regard",
    help="Train your own attention models, look inside them, put them to work.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
OF_THE_PLACE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)
"""Errors of the operating system that say what is wrong with a path, and nothing of the program."""
COMMANDS = (demo, train, plot, average, distill, translate, classify, embed, evaluate, look, bench, export, serve, key)
for command in COMMANDS:
    app.command()(command)
app.command("import")(bring_in)


def main() -> None:
    """Runs the command line: one sentence and exit code 2 for what the user can put right."""
    from regard.errors import UserError

    try:
        # Typer turns Ctrl-C into the code 130, and leaves quietly when the reader of our output, such as `head`, has.
        code = app(standalone_mode=False)
    except UserError as error:
        _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except OSError as error:
        if error.errno not in OF_THE_PLACE or not error.filename:
            raise
        _refuse(f"{error.filename}: {error.strerror}; give another path")
    except Exception as error:
        explain = getattr(error, "format_message", None)  # of Typer's errors, whose class depends on its version
        if explain is None:
            raise
        command = getattr(getattr(error, "ctx", None), "command_path", None) or "regard"
        _refuse(f"{explain().rstrip('.')}; see {command} --help")
    if code == 130:
        sys.stderr.write("regard: interrupted\n")
    sys.exit(code if isinstance(code, int) else 0)


def _refuse(sentence: str) -> NoReturn:
    sys.stderr.write(f"regard: {' '.join(sentence.split())}\n")
    sys.exit(2)


@app.callback(invoke_without_command=True)
def about(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="print the version and stop")] = False,
) -> None:
    """The one option that belongs to no command."""
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"regard {installed('regard')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
