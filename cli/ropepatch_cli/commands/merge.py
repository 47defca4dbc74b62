"""`ropepatch merge`: a trained adapter into the weights of its checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

from ropepatch_cli.options import Json, Output, RemoteCode

AdapterFolder = Annotated[
    Path,
    typer.Argument(help="What `heal --adapter` wrote, or any adapter of PEFT.", show_default=False),
]
Base = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="The checkpoint it was trained on.",
        show_default="the one that it names",
    ),
]


def merge(
    adapter: AdapterFolder,
    output: Output = None,
    model: Base = None,
    trust_remote_code: RemoteCode = False,
    as_json: Json = False,
) -> None:
    """Write the checkpoint with the adapter in its weights, as plain safetensors."""
    from ropepatch.merging import merge
    from ropepatch_cli.terminal import bold, line, print_json
    from ropepatch_cli.working import Work

    target = output or adapter.absolute().with_name(f"{adapter.absolute().name}-merged")
    with Work(quiet=as_json) as work:
        done = merge(adapter, target, model=model, remote_code=trust_remote_code, say=work.say)
    if as_json:
        print_json({"target": str(done.target), "model": done.model, "logits_error": done.error})
        return
    line(f"merged into {done.model}; logits within {done.error:.0e} of the adapter's, read back")
    line(f"written: {bold(str(done.target))}")
