"""What a live patch costs, side by side with the same model unpatched, in one run.

    python recipes/bench/patch_speed.py [--steps 2048] [--repeats 7]

Everything is a ratio of medians taken in turns (patched, stock, patched, ...), so a busy machine
disturbs both alike. The models are random; only shapes count.
"""

import argparse
import gc
import resource
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import ropepatch

SHAPES = {
    "SmolLM2-135M": {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3},
    "Llama-3-8B head": {"hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2},
}
"""Heads of 64 and of 128 features."""


def model_of(name: str, layers: int, trained: int = 2048) -> LlamaForCausalLM:
    """A random Llama of this shape."""
    config = LlamaConfig(
        **SHAPES[name],
        intermediate_size=1536,
        num_hidden_layers=layers,
        vocab_size=1024,
        max_position_embeddings=trained,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


def in_turns(first: Callable[[], Any], second: Callable[[], Any], repeats: int) -> float:
    """Median time of the first over that of the second."""
    times: tuple[list[float], list[float]] = ([], [])
    for run in (first, second):
        run()
    for _ in range(repeats):
        for run, taken in zip((first, second), times, strict=True):
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
    return statistics.median(times[0]) / statistics.median(times[1])


def rotary_ratio(name: str, tokens: int, position: int, repeats: int) -> tuple[float, float]:
    """Patched over stock rotary forward, plain (yarn) and against stock's own yarn."""
    model = model_of(name, 1)
    stock = model.model.rotary_emb
    x = torch.zeros(1, tokens, 1)
    positions = torch.arange(position, position + tokens)[None]
    calls = max(1, 4096 // tokens // 4)
    with ropepatch.patch(model, "yarn", factor=16):
        patched = model.model.rotary_emb
        own = type(stock)(model.config)

        def run(module: Any) -> Callable[[], None]:
            def several() -> None:
                for _ in range(calls):
                    module(x, positions)

            return several

        with torch.no_grad():
            return (
                in_turns(run(patched), run(stock), repeats),
                in_turns(run(patched), run(own), repeats),
            )


def decode_ratio(steps: int, layers: int) -> float:
    """Whole model, one token at a time from 2,048 on: dynamic NTK over yarn."""
    ids = torch.randint(3, 1000, (1, 2048))
    models = [model_of("SmolLM2-135M", layers), model_of("SmolLM2-135M", layers)]
    ropepatch.patch(models[0], "dynamic-ntk", factor=2)
    ropepatch.patch(models[1], "yarn", factor=2)
    spent = [0.0, 0.0]
    with torch.no_grad():
        caches = [m(ids, use_cache=True).past_key_values for m in models]
        token = ids[:, -1:]
        for _ in range(steps):  # in turns, token by token
            for i, model in enumerate(models):
                start = time.perf_counter()
                model(token, cache=caches[i], use_cache=True)
                spent[i] += time.perf_counter() - start
    return spent[0] / spent[1]


def cycle(layers: int, cycles: int) -> tuple[float, float, float]:
    """Milliseconds of patch and revert, growth of Python's memory and of the process, KiB."""
    model = model_of("SmolLM2-135M", layers)
    taken = []

    def once() -> None:
        start = time.perf_counter()
        ropepatch.patch(model, "yarn", factor=4).revert()
        taken.append(time.perf_counter() - start)

    for _ in range(20):
        once()
    gc.collect()
    tracemalloc.start()
    before, resident = tracemalloc.get_traced_memory()[0], _resident()
    times = statistics.median(taken) * 1e3
    for _ in range(cycles):
        once()
    gc.collect()
    grown = (tracemalloc.get_traced_memory()[0] - before) / 1024
    tracemalloc.stop()
    return times, grown, _resident() - resident


def _resident() -> float:
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main() -> None:
    """Read the arguments, then measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--cycles", type=int, default=1000)
    asked = parser.parse_args()
    print("patched rotary forward / stock rotary forward (yarn; against stock's plain, its yarn)")
    for name in SHAPES:
        for what, tokens, position in (
            ("prefill 4,096", 4096, 0),
            ("prefill 32,768", 32768, 0),
            ("decode", 1, 4000),
        ):
            plain, same = rotary_ratio(name, tokens, position, asked.repeats)
            print(f"  {name:16} {what:15} {plain:.2f}  {same:.2f}")
    taken, grown, resident = cycle(asked.layers, asked.cycles)
    print(f"patch and revert, {asked.layers} layers: {taken:.2f} ms")
    print(
        f"memory after {asked.cycles} cycles: {grown:+.0f} KiB of Python's, "
        f"{resident:+.0f} KiB of the process's peak"
    )
    ratio = decode_ratio(asked.steps, asked.layers)
    print(
        f"decode 2,048 to {2048 + asked.steps:,} tokens, {asked.layers} layers, dynamic/yarn: "
        f"{ratio:.3f}"
    )


if __name__ == "__main__":
    main()
