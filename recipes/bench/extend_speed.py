"""How fast `ropepatch extend` is, and how little memory it takes, side by side with the usual way.

    python recipes/bench/extend_speed.py FOLDER [--repeats 5] [--scratch DIR] [--json FILE]

FOLDER is a checkpoint in safetensors, say the one that `recipes/quickstart.sh` leaves in the
cache as `quickstart/smollm2-restored`. Three tables come out of one run:

1. `extend --no-verify` by hard link and by copy, against a script that loads the model with
   transformers, sets the config and saves it again (the tokenizer is left out, in its favour);
2. `extend --no-verify` on checkpoints of 1, 10 and 100 GB: sparse files with true headers and a
   true index, of Llama's shapes, so they take next to no room on the disk;
3. `--help`, `inspect`, and `extend` with its verification.

Every command runs in a process of its own, and the commands of a table take turns. Times run from
start to exit; memory is the peak resident set that the kernel reports. Tables show medians and, in
brackets, the extremes. ropepatch waits until the disk has the data, `save_pretrained` does not:
where the disk is slow, `--copy` shows it.

`--scratch` (default: beside FOLDER) must be on FOLDER's file system, or there is no hard link.
"""

import argparse
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_CLI = (sys.executable, "-m", "ropepatch_cli")
_ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
"""Both sides run as installed packages do, with their bytecode kept."""
_YARN = ("--method", "yarn", "--factor", "4")

_USUAL_WAY = """
import sys
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
trained = model.config.max_position_embeddings
model.config.max_position_embeddings = 4 * trained
model.config.rope_parameters = {
    "rope_type": "yarn",
    "rope_theta": model.config.rope_parameters["rope_theta"],
    "factor": 4.0,
    "original_max_position_embeddings": trained,
}
model.save_pretrained(sys.argv[2])
"""

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
_SHARD = 5 * 10**9
"""Bytes of data per file at most, transformers' own habit."""


Command = Callable[[Path], tuple[str, ...]]
"""A command line, given a place to write to."""


@dataclass(frozen=True)
class Measured:
    """Several runs of one command."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    peak_mib: list[float] = field(default_factory=list)

    @property
    def time(self) -> float:
        """Median, seconds."""
        return statistics.median(self.seconds)

    @property
    def memory(self) -> float:
        """Median peak, MiB."""
        return statistics.median(self.peak_mib)

    def row(self) -> str:
        """Medians, and the extremes of the wall time."""
        spread = f"({min(self.seconds):.2f}-{max(self.seconds):.2f})"
        cpu = statistics.median(self.cpu_seconds)
        return f"{self.time:6.2f} s {spread:<13} {cpu:6.2f} s {self.memory:7,.0f} MiB"


def measure(commands: Mapping[str, Command], scratch: Path, repeats: int) -> dict[str, Measured]:
    """Run each command in turn, several times round, so that all meet the same conditions.

    This process stays small on purpose: the kernel counts a child's peak from before its exec.
    """
    rows = {name: Measured() for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            _run(command, scratch, rows[name])
    return rows


def _run(command: Command, scratch: Path, into: Measured) -> None:
    target = scratch / "target"
    words = command(target)
    with (scratch / "log").open("w+") as log:
        started = time.perf_counter()
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_ENVIRONMENT,
        )
        _, status, usage = os.wait4(child.pid, 0)
        into.seconds.append(time.perf_counter() - started)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            log.seek(0)
            sys.exit(f"{' '.join(words)} failed:\n{log.read()}")
    into.cpu_seconds.append(usage.ru_utime + usage.ru_stime)
    into.peak_mib.append(usage.ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024))
    shutil.rmtree(target, ignore_errors=True)


def show(rows: Mapping[str, Measured], against: str | None = None) -> None:
    """Print a table; ratios where there is something to compare with."""
    print(f"  {'':<27}{'wall time':>8} {'':<13} {'CPU time':>8} {'peak memory':>11}")
    for name, found in rows.items():
        ratios = ""
        if against is not None and name != against:
            faster = rows[against].time / found.time
            smaller = rows[against].memory / found.memory
            ratios = f"  {faster:.1f} times faster, 1/{smaller:.0f} of the memory"
        print(f"  {name:<27}{found.row()}{ratios}", flush=True)


def extending(folder: Path, *options: str) -> Command:
    """The command line of one extension."""
    model = ("extend", "--model", str(folder))
    return lambda target: (*_CLI, *model, *_YARN, *options, "--output", str(target))


def tensors(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a Llama model."""
    hidden, inner, vocabulary = 4096, 14336, 32000
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for i in range(layers):
        for name, shape in {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (hidden // 4, hidden),
            "self_attn.v_proj": (hidden // 4, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }.items():
            yield f"model.layers.{i}.{name}.weight", shape
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocabulary, hidden)


def sparse_checkpoint(folder: Path, gigabytes: int) -> tuple[int, int]:
    """Write a Llama of about this size whose data is holes; its bytes and number of files."""
    per_layer = 436_224_000  # bytes in bfloat16
    layers = max(1, round((gigabytes * 10**9 - 524_296_192) / per_layer))
    folder.mkdir()
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    filled = 0
    for name, shape in tensors(layers):
        size = 2 * _count(shape)
        if shards[-1] and filled + size > _SHARD:
            shards.append({})
            filled = 0
        shards[-1][name] = shape
        filled += size
    total = 0
    weight_map: dict[str, str] = {}
    for i, shard in enumerate(shards, 1):
        file = f"model-{i:05}-of-{len(shards):05}.safetensors"
        total += _sparse_shard(folder / file, shard)
        weight_map |= dict.fromkeys(shard, file)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({**_LLAMA, "num_hidden_layers": layers}))
    return total, len(shards)


def _sparse_shard(path: Path, shard: dict[str, tuple[int, ...]]) -> int:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shard.items():
        end = at + 2 * _count(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(path, 8 + len(text) + at)
    return at


def _count(shape: tuple[int, ...]) -> int:
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def against_transformers(folder: Path, scratch: Path, repeats: int) -> dict[str, Measured]:
    """Table 1."""
    usual = "load, set config, save"
    commands: dict[str, Command] = {
        usual: lambda target: (sys.executable, "-c", _USUAL_WAY, str(folder), str(target)),
        "ropepatch, hard link": extending(folder, "--no-verify", "--link"),
        "ropepatch, copy": extending(folder, "--no-verify", "--copy"),
    }
    measure(commands, scratch, 1)  # does not count: the disk's cache, Python's compiled files
    rows = measure(commands, scratch, repeats)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    print(f"1. Extend {folder.name}, {size / 10**6:,.0f} MB of weights; {repeats} runs each\n")
    show(rows, usual)
    return rows


def against_size(scratch: Path, repeats: int) -> dict[str, Measured]:
    """Table 2."""
    commands = {}
    for gigabytes in (1, 10, 100):
        folder = scratch / f"llama-{gigabytes}gb"
        total, files = sparse_checkpoint(folder, gigabytes)
        name = f"{total / 10**9:.1f} GB in {files} file{'s' if files > 1 else ''}"
        commands[name] = extending(folder, "--no-verify", "--link")
    rows = measure(commands, scratch, repeats)
    print(f"\n2. The same by size of the weights, hard link; {repeats} runs each\n")
    show(rows)
    return rows


def other_commands(folder: Path, scratch: Path, repeats: int) -> dict[str, Measured]:
    """Table 3."""
    commands: dict[str, Command] = {
        "ropepatch --help": lambda target: (*_CLI, "--help"),
        "ropepatch inspect": lambda target: (*_CLI, "inspect", str(folder)),
        "ropepatch extend, verified": extending(folder, "--link"),
    }
    rows = measure(commands, scratch, repeats)
    print(f"\n3. Other commands, on {folder.name}; {repeats} runs each\n")
    show(rows)
    return rows


def main() -> None:
    """Read the arguments and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="where to write (default: beside FOLDER)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every single run")
    asked = parser.parse_args()
    folder: Path = asked.folder.resolve()
    with tempfile.TemporaryDirectory(dir=asked.scratch or folder.parent, prefix="bench-") as name:
        scratch, repeats = Path(name), asked.repeats
        tables = {
            "against_transformers": against_transformers(folder, scratch, repeats),
            "against_size": against_size(scratch, repeats),
            "other_commands": other_commands(folder, scratch, repeats),
        }
    if asked.json is not None:
        words = {key: {n: asdict(m) for n, m in rows.items()} for key, rows in tables.items()}
        asked.json.write_text(json.dumps(words, indent=2) + "\n")


if __name__ == "__main__":
    main()
