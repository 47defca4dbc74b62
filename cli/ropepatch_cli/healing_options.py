"""Options of `ropepatch heal`; what is not given is as the recipe says, or the plan's default."""

from pathlib import Path
from typing import Annotated

import typer

_TRAIN, _LOSS, _WATCH = "Training", "Loss", "Measuring and saving"

Steps = Annotated[
    int | None,
    typer.Option("--steps", help="Optimizer steps.", show_default=False, rich_help_panel=_TRAIN),
]
Batch = Annotated[
    int | None,
    typer.Option(
        "--batch",
        help="Sequences per step, over all processes.",
        show_default="8",
        rich_help_panel=_TRAIN,
    ),
]
MicroBatch = Annotated[
    int | None,
    typer.Option(
        "--micro-batch",
        help="Of these, how many a device reads side by side.",
        show_default="1",
        rich_help_panel=_TRAIN,
    ),
]
LearningRate = Annotated[
    float | None,
    typer.Option(
        "--learning-rate",
        "--lr",
        help="The highest.",
        show_default="2e-5, adapters 2e-4",
        rich_help_panel=_TRAIN,
    ),
]
ScheduleName = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        help="linear, cosine or constant.",
        show_default="cosine",
        rich_help_panel=_TRAIN,
    ),
]
Warmup = Annotated[
    int | None,
    typer.Option(
        "--warmup",
        help="Steps in which the rate rises.",
        show_default="20, at most a tenth",
        rich_help_panel=_TRAIN,
    ),
]
WeightDecay = Annotated[
    float | None,
    typer.Option("--weight-decay", show_default="0", rich_help_panel=_TRAIN),
]
Fade = Annotated[
    float | None,
    typer.Option(
        "--fade",
        help="Share of the steps in which the change comes in little by little.",
        show_default="0",
        rich_help_panel=_TRAIN,
    ),
]
Lora = Annotated[
    int | None,
    typer.Option(
        "--lora",
        help="Train adapters of this rank on the attention, with embeddings and norms.",
        show_default=False,
        rich_help_panel=_TRAIN,
    ),
]
Full = Annotated[
    bool, typer.Option("--full", help="Train all weights (the default).", rich_help_panel=_TRAIN)
]
TrainNorms = Annotated[
    bool | None,
    typer.Option(
        "--train-norms/--keep-norms",
        help="Beside adapters.",
        show_default="train",
        rich_help_panel=_TRAIN,
    ),
]
TrainEmbeddings = Annotated[
    bool | None,
    typer.Option(
        "--train-embeddings/--keep-embeddings",
        help="Beside adapters.",
        show_default="train",
        rich_help_panel=_TRAIN,
    ),
]
Adapter = Annotated[
    bool,
    typer.Option(
        "--adapter",
        help="Write the adapter alone; `ropepatch merge` puts it into the weights.",
        rich_help_panel=_TRAIN,
    ),
]
PrecisionName = Annotated[
    str | None,
    typer.Option(
        "--precision",
        help="float32, bfloat16 (over float32 weights) or auto.",
        show_default="auto",
        rich_help_panel=_TRAIN,
    ),
]
Checkpointing = Annotated[
    bool | None,
    typer.Option(
        "--gradient-checkpointing/--no-gradient-checkpointing",
        help="Compute activations again on the way back.",
        show_default="by the memory that is free",
        rich_help_panel=_TRAIN,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed", help="Of the order of the data.", show_default="0", rich_help_panel=_TRAIN
    ),
]
TeacherName = Annotated[
    str | None,
    typer.Option(
        "--teacher",
        help="The model from before the change: its whole opinion is learned inside its window.",
        show_default=False,
        rich_help_panel=_LOSS,
    ),
]
TeacherWeight = Annotated[
    float | None,
    typer.Option(
        "--teacher-weight",
        help="Share of that in the loss of a token.",
        show_default="1",
        rich_help_panel=_LOSS,
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option("--temperature", help="Of it.", show_default="1", rich_help_panel=_LOSS),
]
HiddenWeight = Annotated[
    float | None,
    typer.Option(
        "--hidden-weight",
        help="Of the distance between hidden states of both.",
        show_default="0",
        rich_help_panel=_LOSS,
    ),
]
CheckEvery = Annotated[
    int | None,
    typer.Option(
        "--check-every",
        help="Steps between measurements (needles, held-out loss); the best checkpoint is kept.",
        show_default="before and after",
        rich_help_panel=_WATCH,
    ),
]
CheckPrompts = Annotated[
    int | None,
    typer.Option(
        "--check-prompts",
        help="Needles per length.",
        show_default="20",
        rich_help_panel=_WATCH,
    ),
]
CheckWindows = Annotated[
    int | None,
    typer.Option(
        "--check-windows",
        help="Held-out sequences.",
        show_default="4",
        rich_help_panel=_WATCH,
    ),
]
SaveEvery = Annotated[
    int | None,
    typer.Option(
        "--save-every",
        help="Steps between checkpoints.",
        show_default="a fifth of the steps",
        rich_help_panel=_WATCH,
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        "--until",
        help="Stop when it is reached: needle>=0.95; also needle_short, loss, loss_short.",
        show_default=False,
        rich_help_panel=_WATCH,
    ),
]
Best = Annotated[
    str | None,
    typer.Option(
        "--best",
        help="What decides which checkpoint is the best.",
        show_default="that of --until, else loss",
        rich_help_panel=_WATCH,
    ),
]
HealRecipe = Annotated[
    Path | None,
    typer.Option(
        "--recipe",
        help="A YAML file (recipes/heal), with stages if need be; options given here win.",
        show_default=False,
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        help="Draw loss and measurements to this file.",
        show_default=False,
        rich_help_panel=_WATCH,
    ),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.")]
Plan = Annotated[
    bool,
    typer.Option("--dry-run", help="Tell tokens, memory and time; load and write nothing."),
]
