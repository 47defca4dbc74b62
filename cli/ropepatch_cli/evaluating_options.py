"""Options that the evaluating commands share."""

from pathlib import Path
from typing import Annotated

import typer

Lengths = Annotated[
    str,
    typer.Option(
        "--lengths",
        help="Tokens of prompt and answer: 4k,8k,16k (k = 1024).",
        show_default="half, all and twice of the trained length",
    ),
]
WindowLengths = Annotated[
    str,
    typer.Option(
        "--lengths",
        help="Tokens read: 2k,8k,32k (k = 1024); the longest is the window.",
        show_default="half, all and twice of the trained length",
    ),
]
CompareLengths = Annotated[
    str,
    typer.Option(
        "--lengths",
        help="Tokens: 4k,8k,16k (k = 1024).",
        show_default="0.5, 1, 2, 4 times the trained length, up to --factor",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Folder of the results; the same command again goes on where it stopped.",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Of keys, numbers and generated sentences.")]
Tasks = Annotated[
    str,
    typer.Option(
        "--task",
        help="passkey, niah_single, niah_multikey, niah_multivalue, niah_multiquery, "
        "variable_tracking, common_words, frequent_words; several with commas.",
    ),
]
Depths = Annotated[str, typer.Option("--depths", help="Per cent: START:STOP:STEP, or a list.")]
Trials = Annotated[int, typer.Option("--trials", help="Questions per length and depth.")]
Haystack = Annotated[
    Path | None,
    typer.Option(
        "--haystack",
        help="A text file or a folder of them to hide needles in.",
        show_default="prose of ropepatch's own",
    ),
]
Text = Annotated[
    str | None,
    typer.Option(
        "--text",
        help="A text file, a folder of them, or a dataset of the hub (name:config:split:column).",
        show_default="the topics of Python's help()",
    ),
]
ProtocolName = Annotated[
    str,
    typer.Option(
        "--protocol",
        help="independent (each cell its own prompt) or shared (one text with a needle at every "
        "depth).",
    ),
]
ScoringName = Annotated[
    str,
    typer.Option(
        "--scoring",
        help="likelihood (one forward of prompt and answer), generate, or auto: generate for "
        "models that chat.",
    ),
]
ChatFlag = Annotated[
    bool | None,
    typer.Option(
        "--chat/--no-chat", help="Use the chat template.", show_default="for instruct models"
    ),
]
Reuse = Annotated[
    bool, typer.Option("--reuse/--no-reuse", help="Read what prompts have in common once.")
]
Chunk = Annotated[
    int | None,
    typer.Option(
        "--prefill-chunk", help="Tokens per forward.", show_default="by the memory that is free"
    ),
]
Dtype = Annotated[
    str,
    typer.Option("--dtype", help="auto (float32 on a CPU), float32, float16 or bfloat16."),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps.")]
DeviceMap = Annotated[
    str | None,
    typer.Option("--device-map", help="auto spreads the model over all devices."),
]
Attention = Annotated[
    str | None,
    typer.Option("--attn-implementation", help="sdpa, eager, flash_attention_2, ..."),
]
Tokenizer = Annotated[
    str | None,
    typer.Option("--tokenizer", help="A folder or id.", show_default="the model's own"),
]
MemoryCheck = Annotated[
    bool,
    typer.Option("--memory-check/--no-memory-check", help="Refuse what cannot fit in memory."),
]
MaxWindows = Annotated[
    int, typer.Option("--max-windows", help="Windows of the longest length to read.")
]
