"""The Typer app: the table of commands and the one place where errors become words."""

import gc
import io
import os
import sys
from typing import Annotated

import typer

from ropepatch_cli.commands import (
    compare,
    convert,
    evaluate,
    export,
    extend,
    heal,
    inspect,
    merge,
    methods,
    report,
    restore,
    verify,
)

_INTERRUPTED = 130
_STOPPED = 143
"""As of a process that SIGTERM ended; what it had done is saved."""

app = typer.Typer(
    name="ropepatch",
    help="Give a pretrained language model a longer context, and prove that it took effect.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("extend")(extend.extend)
app.command("convert")(convert.convert)
app.command("heal")(heal.heal)
app.command("merge")(merge.merge)
app.command("export")(export.export)
app.command("inspect")(inspect.inspect)
app.command("verify")(verify.verify)
app.command("restore")(restore.restore)
app.command("methods")(methods.methods)
app.command("compare")(compare.compare)
app.command("report")(report.report)

_EVALUATE = typer.Typer(
    help="Measure a model: needles in a haystack, perplexity by length.", no_args_is_help=True
)
_EVALUATE.command("needle")(evaluate.needle)
_EVALUATE.command("perplexity")(evaluate.perplexity)
app.add_typer(_EVALUATE, name="evaluate")


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
    from ropepatch.errors import HealingStoppedError, RopepatchError

    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # Typer's; they cost 30 ms
    gc.set_threshold(50_000, 20, 20)  # importing allocates much and frees nothing
    if isinstance(sys.stdout, io.TextIOWrapper):  # what the terminal cannot show becomes "?"
        sys.stdout.reconfigure(errors="replace")
    try:
        app()
    except HealingStoppedError as stopped:
        print(f"ropepatch: {stopped}", file=sys.stderr)
        raise SystemExit(_STOPPED) from None
    except RopepatchError as error:
        said = " ".join(str(error).splitlines())
        print(f"ropepatch: {said}", file=sys.stderr)
        raise SystemExit(2) from None
    except SystemExit as left:
        if left.code == _INTERRUPTED:  # Typer takes Ctrl-C itself, without a word
            print("ropepatch: interrupted; nothing half-written is left.", file=sys.stderr)
        raise


if __name__ == "__main__":
    main()
