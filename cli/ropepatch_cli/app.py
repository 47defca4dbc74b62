"""The Typer app: the table of commands and the one place where errors become words."""

import os
import sys
from typing import Annotated

import typer

from ropepatch_cli.commands import extend, inspect, methods, restore, verify

app = typer.Typer(
    name="ropepatch",
    help="Give a pretrained language model a longer context, and prove that it took effect.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("extend")(extend.extend)
app.command("inspect")(inspect.inspect)
app.command("verify")(verify.verify)
app.command("restore")(restore.restore)
app.command("methods")(methods.methods)


def _version(asked: bool) -> None:
    if asked:
        from ropepatch import __version__

        typer.echo(f"ropepatch {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Give a pretrained language model a longer context, and prove that it took effect."""


def main() -> None:
    """Run; a refusal is one line on stderr and exit code 2, a bug keeps its traceback."""
    from ropepatch.errors import RopepatchError

    try:
        app()
    except RopepatchError as error:
        print(f"ropepatch: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("ropepatch: interrupted; nothing was left behind.", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader of a pipe went away, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
