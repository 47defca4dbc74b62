"""Run lm-evaluation-harness on a patched model, next to the same model without its patch.

    python recipes/live/lm_eval_run.py MODEL
    python recipes/live/lm_eval_run.py MODEL --data texts.jsonl --factor 8 --window 65536
    python recipes/live/lm_eval_run.py MODEL --tasks hellaswag --limit 100

MODEL is a folder, an id of the hub or a GGUF file; needs `pip install lm_eval`. The default task
is made here and fetches nothing: perplexity of the texts in a file of JSON lines, each with a
`text`, or of Python's own `help()`. `--tasks` takes the harness's own. Both models read windows of
one length; left alone, the harness goes by the config, where the patch raises the length.
"""

import argparse
import json
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from datasets import Dataset
from lm_eval import simple_evaluate
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM
from transformers import AutoTokenizer
from transformers.utils import logging

import ropepatch


def perplexity(path: Path | None, characters: int | None) -> ConfigurableTask:
    """A task that reads texts and measures how well they were foreseen."""
    if path is None:
        texts = sorted(topics.values(), key=len, reverse=True)[:3]
    else:
        lines = path.read_text(encoding="utf-8").splitlines()
        texts = [json.loads(line)["text"] for line in lines if line.strip()]
    docs = Dataset.from_list([{"text": text[:characters]} for text in texts])
    return ConfigurableTask(
        config={
            "task": "long_texts",
            "custom_dataset": lambda **_: {"test": docs},
            "test_split": "test",
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metadata": {"version": 1},
        }
    )


def main() -> None:
    """Read the arguments, evaluate twice, print both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--data", type=Path, metavar="FILE", help='JSON lines: {"text": ...}')
    parser.add_argument("--characters", type=int, help="at most, of each text")
    parser.add_argument("--tasks", nargs="+", metavar="NAME", help="of the harness, instead")
    parser.add_argument("--limit", type=int, help="documents per task")
    parser.add_argument("--method", default="yarn")
    parser.add_argument("--factor", type=float, default=4.0)
    parser.add_argument("--short-exact", action="store_true", help="as before while it is short")
    parser.add_argument("--window", type=int, help="tokens; default: what the patch is meant for")
    asked = parser.parse_args()
    logging.disable_progress_bar()

    model: Any = ropepatch.load(asked.model, dtype="auto", device_map="auto")
    tokenizer: Any = AutoTokenizer.from_pretrained(model.name_or_path)
    tasks: list[Any] = asked.tasks or [perplexity(asked.data, asked.characters)]
    words = {"short_exact": asked.short_exact}
    patch = ropepatch.patch(model, asked.method, asked.factor, **words)
    print(patch.describe())

    def measure() -> dict[str, dict[str, Any]]:
        harness = HFLM(model, tokenizer=tokenizer, max_length=asked.window or patch.target_length)
        done: Any = simple_evaluate(harness, tasks=tasks, limit=asked.limit, bootstrap_iters=0)
        return dict(done["results"])

    patched = measure()
    patch.revert()
    plain = measure()
    print(f"\n{'task':<24}{'metric':<28}{'plain':>12}{'patched':>12}")
    for task, metrics in patched.items():
        for name, value in metrics.items():
            if isinstance(value, float):
                metric = name.removesuffix(",none")
                print(f"{task:<24}{metric:<28}{plain[task][name]:>12.6g}{value:>12.6g}")


if __name__ == "__main__":
    main()
