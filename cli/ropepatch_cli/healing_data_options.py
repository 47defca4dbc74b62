"""Options of `ropepatch heal` about what is read."""

from typing import Annotated

import typer

_DATA = "Data"

Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        help="Text, JSONL or parquet files, folders of them, or a dataset of the hub "
        "(name:config:split:column); may be given several times.",
        show_default=False,
        rich_help_panel=_DATA,
    ),
]
SeqLen = Annotated[
    str | None,
    typer.Option(
        "--seq-len", help="Tokens of a sequence: 8k.", show_default=False, rich_help_panel=_DATA
    ),
]
TextColumn = Annotated[
    str | None,
    typer.Option(
        "--text-column",
        help="Where rows keep their text.",
        show_default="text",
        rich_help_panel=_DATA,
    ),
]
Packing = Annotated[
    str | None,
    typer.Option(
        "--packing",
        help="restart (documents follow each other in a sequence, each with positions of its own "
        "and blind to the others), continue (as one text), single (one document each, padded).",
        show_default="restart",
        rich_help_panel=_DATA,
    ),
]
MinDocLen = Annotated[
    str | None,
    typer.Option(
        "--min-doc-len",
        help="Leave out documents of fewer tokens.",
        show_default=False,
        rich_help_panel=_DATA,
    ),
]
LongShare = Annotated[
    float | None,
    typer.Option(
        "--long-share",
        help="Or only so many of them that long ones keep this share of the tokens.",
        show_default="1",
        rich_help_panel=_DATA,
    ),
]
ShortShare = Annotated[
    float | None,
    typer.Option(
        "--short-share",
        help="Share of each step that reads short sequences.",
        show_default="0",
        rich_help_panel=_DATA,
    ),
]
ShortLen = Annotated[
    str | None,
    typer.Option(
        "--short-len",
        help="Tokens of those.",
        show_default="the length of pretraining",
        rich_help_panel=_DATA,
    ),
]
ShortOriginal = Annotated[
    bool | None,
    typer.Option(
        "--short-original/--short-patched",
        help="Read them under the frequencies from before the patch, where it keeps them.",
        show_default="patched",
        rich_help_panel=_DATA,
    ),
]
