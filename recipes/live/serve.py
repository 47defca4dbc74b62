"""Serve a patched model over HTTP with transformers' own server, in OpenAI's words.

    python recipes/live/serve.py MODEL --port 8001 --method dynamic-ntk --factor 8
    python recipes/live/serve.py MODEL --once "What is a rope?"

MODEL is a folder, an id of the hub or a GGUF file; needs `pip install "transformers[serving]"`.
`transformers serve` takes names of models only, but what it is made of takes a model that is there
already. Requests within the trained length are answered exactly as by the plain model. Not for
continuous batching. `--once` asks one question over HTTP, prints the answer and stops.
"""

import argparse
import json
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import uvicorn
from transformers import AutoTokenizer
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.response import ResponseHandler
from transformers.cli.serving.server import build_server
from transformers.cli.serving.systemone import SystemOneHandler
from transformers.cli.serving.transcription import TranscriptionHandler
from transformers.cli.serving.utils import GenerationState
from transformers.utils import logging

import ropepatch


class Ready(ModelManager):
    """A manager that has its one model already, and gives it again after `/reset` too."""

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        self.model, self.tokenizer = model, tokenizer
        super().__init__(force_model=name)

    def _load_model(self, *_args: Any, **_words: Any) -> Any:
        return self.model

    def _load_processor(self, *_args: Any, **_words: Any) -> Any:
        return self.tokenizer


def post(url: str, body: dict[str, Any]) -> Any:
    """The first answer to one request."""
    data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
    with urlopen(Request(url, data, kind)) as reply:
        return json.load(reply)["choices"][0]


def main() -> None:
    """Read the arguments, load with the patch, serve."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--method", default="yarn")
    parser.add_argument("--factor", type=float, default=4.0)
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free")
    parser.add_argument("--once", metavar="PROMPT")
    asked = parser.parse_args()
    logging.disable_progress_bar()

    model: Any = ropepatch.load(asked.model, dtype="auto", device_map="auto")
    tokenizer: Any = AutoTokenizer.from_pretrained(model.name_or_path)
    print(ropepatch.patch(model, asked.method, asked.factor, short_exact=True).describe())
    manager = Ready(model, tokenizer, f"{Path(asked.model).stem}-{asked.method}")
    state = GenerationState()
    kinds = (ChatCompletionHandler, CompletionHandler, ResponseHandler, TranscriptionHandler)
    app = build_server(manager, *(k(manager, state) for k in (*kinds, SystemOneHandler)), state)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    listening = socket.create_server(("127.0.0.1", asked.port))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    print(f"{manager.force_model} at {url}", flush=True)
    if asked.once is None:
        return server.run([listening])
    threading.Thread(target=server.run, args=([listening],), daemon=True).start()
    if tokenizer.chat_template:
        body = {"messages": [{"role": "user", "content": asked.once}], "max_tokens": 100}
        return print(post(f"{url}/chat/completions", body)["message"]["content"])
    return print(post(f"{url}/completions", {"prompt": asked.once, "max_tokens": 100})["text"])


if __name__ == "__main__":
    main()
