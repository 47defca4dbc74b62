"""`ropepatch compare`: one model under many methods, side by side."""

from typing import Annotated

import typer

from ropepatch_cli.evaluating_options import (
    Attention,
    ChatFlag,
    Chunk,
    CompareLengths,
    Depths,
    Device,
    DeviceMap,
    Dtype,
    Haystack,
    MaxWindows,
    MemoryCheck,
    Out,
    ProtocolName,
    Reuse,
    ScoringName,
    Seed,
    Tasks,
    Text,
    Tokenizer,
    Trials,
)
from ropepatch_cli.options import Json, Model, RemoteCode, Revision

Methods = Annotated[
    str,
    typer.Option(
        "--methods",
        help="With commas: none, pi, ntk, yarn, ...; values of their own after colons, as in "
        "yarn:beta_fast=16 or ntk:factor=8.",
    ),
]
HowMuch = Annotated[
    float, typer.Option("--factor", "-f", help="How many times longer than trained.")
]
Only = Annotated[str, typer.Option("--only", help="needle or perplexity.", show_default="both")]


def compare(
    model: Model = "",
    methods: Methods = "none,pi,ntk,dynamic-ntk,yarn",
    factor: HowMuch = 4.0,
    lengths: CompareLengths = "",
    only: Only = "",
    task: Tasks = "niah_single",
    depths: Depths = "0:100:25",
    trials: Trials = 1,
    seed: Seed = 0,
    text: Text = None,
    max_windows: MaxWindows = 1,
    output: Out = None,
    haystack: Haystack = None,
    protocol: ProtocolName = "independent",
    scoring: ScoringName = "auto",
    chat: ChatFlag = None,
    reuse: Reuse = True,
    prefill_chunk: Chunk = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    device_map: DeviceMap = None,
    attn_implementation: Attention = None,
    tokenizer: Tokenizer = None,
    memory_check: MemoryCheck = True,
    revision: Revision = None,
    trust_remote_code: RemoteCode = False,
    as_json: Json = False,
) -> None:
    """Load a model once, patch it by each method in memory, measure what each gains and costs."""
    from ropepatch.errors import EvaluationError
    from ropepatch_cli import evaluating

    if only not in ("", "needle", "perplexity"):
        raise EvaluationError(f"--only {only}: write needle or perplexity.")
    if only == "needle" and text is not None:
        raise EvaluationError("--text is what perplexity reads; leave out --only needle.")
    opening = evaluating.opening(
        model,
        revision=revision,
        tokenizer=tokenizer,
        dtype=dtype,
        device=device,
        device_map=device_map,
        attention=attn_implementation,
        remote_code=trust_remote_code,
    )
    asked = evaluating.needle_words(
        task, depths, trials=trials, seed=seed, protocol=protocol, scoring=scoring, chat=chat
    )
    folder = evaluating.output_of(output, model, "compare")
    with evaluating.bar(quiet=as_json) as bar:
        mine = evaluating.compare(
            opening,
            methods,
            factor,
            lengths,
            folder,
            evaluating.settings(bar, reuse=reuse, chunk=prefill_chunk),
            needles=asked if only != "perplexity" else None,
            windows=max_windows if only != "needle" else None,
            haystack=haystack,
            text=text,
            memory_check=memory_check,
        )
    if mine:
        evaluating.finished(folder, as_json=as_json)
