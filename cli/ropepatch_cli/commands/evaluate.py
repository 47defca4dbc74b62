"""`ropepatch evaluate`: needles in a haystack, and perplexity by length."""

from typing import Annotated, Any

import typer

from ropepatch_cli.evaluating_options import (
    Attention,
    ChatFlag,
    Chunk,
    Depths,
    Device,
    DeviceMap,
    Dtype,
    Haystack,
    Lengths,
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
    WindowLengths,
)
from ropepatch_cli.options import Json, Model, RemoteCode, Revision

AnswerTokens = Annotated[
    int | None,
    typer.Option(
        "--answer-tokens", help="Tokens kept free for an answer.", show_default="as needed"
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        help="Ask a served model instead: the URL of vLLM, SGLang, llama.cpp or transformers "
        "serve. --model names its tokenizer.",
        show_default=False,
    ),
]
ServedModel = Annotated[
    str | None,
    typer.Option("--served-model", help="Its name there.", show_default="as --model"),
]
Concurrency = Annotated[
    int, typer.Option("--concurrency", help="Requests under way at once (--endpoint).")
]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds per request (--endpoint).")]
Buckets = Annotated[
    int, typer.Option("--buckets", help="Parts of the window, for the loss by place.")
]
FinalTokens = Annotated[
    int | None,
    typer.Option(
        "--final-tokens",
        help="Tokens at the window's end that are read under each length; 0 for none.",
        show_default="256, at most half of the shortest length",
    ),
]
Stride = Annotated[
    int | None,
    typer.Option("--stride", help="Also the papers' sliding window, moved by so many tokens."),
]
BosFlag = Annotated[
    bool | None,
    typer.Option(
        "--bos/--no-bos",
        help="Begin each window with the beginning-of-sequence token.",
        show_default="as the tokenizer does",
    ),
]
Join = Annotated[bool, typer.Option("--join", help="Join the documents into one text.")]
LongPpl = Annotated[
    bool, typer.Option("--longppl", help="Also LongPPL: perplexity over key tokens.")
]
ShortContext = Annotated[
    str | None,
    typer.Option(
        "--short-context",
        help="LongPPL: tokens of the short context.",
        show_default="4k, at most a quarter of the longest length",
    ),
]
Judge = Annotated[
    str | None,
    typer.Option(
        "--judge", help="LongPPL: the model that chooses key tokens.", show_default="itself"
    ),
]


def needle(
    model: Model = "",
    lengths: Lengths = "",
    task: Tasks = "niah_single",
    depths: Depths = "0:100:10",
    trials: Trials = 1,
    seed: Seed = 0,
    output: Out = None,
    haystack: Haystack = None,
    protocol: ProtocolName = "independent",
    scoring: ScoringName = "auto",
    chat: ChatFlag = None,
    reuse: Reuse = True,
    prefill_chunk: Chunk = None,
    answer_tokens: AnswerTokens = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    device_map: DeviceMap = None,
    attn_implementation: Attention = None,
    tokenizer: Tokenizer = None,
    endpoint: Url = None,
    served_model: ServedModel = None,
    concurrency: Concurrency = 4,
    timeout: Timeout = 120.0,
    memory_check: MemoryCheck = True,
    revision: Revision = None,
    trust_remote_code: RemoteCode = False,
    as_json: Json = False,
) -> None:
    """Hide facts in long texts and ask for them, over length and depth."""
    from ropepatch_cli import evaluating

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
    server = evaluating.Server(endpoint, served_model, concurrency, timeout)
    folder = evaluating.output_of(output, model, "needle")
    with evaluating.bar(quiet=as_json) as bar:
        settings = evaluating.settings(bar, reuse=reuse, chunk=prefill_chunk)
        mine = evaluating.needle(
            opening,
            lengths,
            {**asked, "answer_tokens": answer_tokens},
            folder,
            settings,
            haystack=haystack,
            server=server,
            memory_check=memory_check,
        )
    if mine:
        evaluating.finished(folder, as_json=as_json)


def perplexity(
    model: Model = "",
    text: Text = None,
    lengths: WindowLengths = "",
    max_windows: MaxWindows = 4,
    output: Out = None,
    buckets: Buckets = 16,
    final_tokens: FinalTokens = None,
    stride: Stride = None,
    bos: BosFlag = None,
    join: Join = False,
    longppl: LongPpl = False,
    short_context: ShortContext = None,
    judge: Judge = None,
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
    """Read long texts: perplexity at each length, loss by place, and what more context gains."""
    from ropepatch_cli import evaluating

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
    words: dict[str, Any] = {
        "max_windows": max_windows,
        "buckets": buckets,
        "stride": stride,
        "bos": "auto" if bos is None else "yes" if bos else "no",
        "join": join,
    }
    folder = evaluating.output_of(output, model, "perplexity")
    with evaluating.bar(quiet=as_json) as bar:
        mine = evaluating.perplexity(
            opening,
            lengths,
            words,
            folder,
            evaluating.settings(bar, reuse=True, chunk=prefill_chunk),
            final_tokens=final_tokens,
            longppl=longppl,
            short_context=short_context,
            text=text,
            judge=judge,
            memory_check=memory_check,
        )
    if mine:
        evaluating.finished(folder, as_json=as_json)
