import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from ropepatch.errors import CheckpointError
from ropepatch.plots import draw_training, save_training
from ropepatch.plots.canvas import sheet

ROOT = Path(__file__).parents[2]
LOSSES = [{"step": i, "loss": 3 - i / 10} for i in range(1, 11)]
CHECKS = [
    {"step": 0, "loss": 3.0, "loss_short": 2.9, "needle": 0.0, "needle_short": 0.5},
    {"step": 10, "loss": 2.0, "loss_short": 2.1, "needle": 0.75, "needle_short": 1.0},
]


def test_a_training_is_drawn_with_what_was_measured() -> None:
    axes = draw_training(sheet(6, 4).subplots(), LOSSES, CHECKS, (256, 1024))
    lines = {line.get_label(): line for one in axes.figure.axes for line in one.get_lines()}
    assert set(lines) == {
        "training loss",
        "held-out loss at 1k",
        "held-out loss at 256",
        "needles found at 1k",
        "needles found at 256",
    }
    assert np.asarray(lines["needles found at 1k"].get_ydata()).tolist() == [0.0, 0.75]
    assert np.asarray(lines["held-out loss at 256"].get_xdata()).tolist() == [0, 10]


def test_one_length_is_drawn_once() -> None:
    axes = draw_training(sheet(6, 4).subplots(), LOSSES, CHECKS, (1024,))
    labels = [line.get_label() for one in axes.figure.axes for line in one.get_lines()]
    assert labels == ["training loss", "held-out loss at 1k", "needles found at 1k"]


def test_the_picture_is_written_or_refused(tmp_path: Path) -> None:
    save_training(tmp_path / "a.png", "$title", LOSSES, CHECKS, (256, 1024))
    assert (tmp_path / "a.png").stat().st_size > 10_000
    with pytest.raises(CheckpointError):
        save_training(tmp_path / "no" / "a.png", "title", LOSSES, [], (256,))


def test_documents_for_the_tiny_retriever(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    script = ROOT / "recipes" / "tiny_documents.py"
    words = ["--documents", "30", "--tokens", "300", "--short", "100", "--long", "0.5"]
    subprocess.run(
        [sys.executable, script, file, *words],
        check=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "recipes" / "models" / "tiny-retriever")
    texts = [json.loads(line)["text"] for line in file.read_text().splitlines()]
    sizes = [len(tokenizer(text, verbose=False).input_ids) for text in texts]
    assert len(texts) == 30
    # with the end that follows each they fill their sequence; where a text was cut within a word,
    # it may have a token more or less
    assert all(min(abs(size - 99), abs(size - 299)) <= 2 for size in sizes)
    assert {size > 200 for size in sizes} == {True, False}
