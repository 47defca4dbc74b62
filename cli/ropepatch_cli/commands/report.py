"""`ropepatch report`: one page about what was measured."""

from pathlib import Path
from typing import Annotated

import typer

from ropepatch_cli.options import Json


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Folders of `evaluate` or `compare`.", metavar="DIR..."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The page.",
            show_default="report.html, in DIR if there is one",
        ),
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(
            "--pictures", help="Also write the pictures, as PNGs, here.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write tables and pictures of measurements as one page that needs no network."""
    from ropepatch.reporting.page import write_report
    from ropepatch_cli import measuring
    from ropepatch_cli.working import waiting

    home = folders[0] if len(folders) == 1 else Path()
    with waiting("drawing"):
        written = write_report(folders, output or home / "report.html", pictures)
    measuring.written(written, as_json=as_json)
