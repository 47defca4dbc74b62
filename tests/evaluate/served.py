"""Servers on loopback: one that answers what a test says, and `transformers serve`."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

from tests import tiny

HANG = -1
"""A status: no answer at all."""
Reply = tuple[int, Any] | tuple[int, Any, dict[str, str]]
"""Status, what is said (bytes, or anything that JSON can say), and headers."""
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def completion(text: str, prompt_tokens: int | None = None) -> Any:
    """As /v1/completions and /v1/chat/completions answer, in one."""
    usage = {} if prompt_tokens is None else {"usage": {"prompt_tokens": prompt_tokens}}
    return {"choices": [{"text": text, "message": {"content": text}}], **usage}


class Scripted:
    """A server that notes what it is asked, and answers as a test wants it."""

    def __init__(self, answer: Callable[[str, Any], Reply], models: Any = ("m",)) -> None:
        self._answer = answer
        self.models: Reply = (200, {"data": [{"id": name} for name in models]})
        self.asked: list[tuple[str, Any]] = []
        """Paths and bodies of what was posted."""
        self.at_once = 0
        """The most that were asked at a time."""
        self._now = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer._send(self, outer.models)

            def do_POST(self) -> None:
                size = int(self.headers["content-length"])
                outer._post(self, json.loads(self.rfile.read(size)))

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _post(self, handler: BaseHTTPRequestHandler, body: Any) -> None:
        with self._lock:
            self.asked.append((handler.path, body))
            self._now += 1
            self.at_once = max(self.at_once, self._now)
        reply = self._answer(handler.path, body)
        with self._lock:
            self._now -= 1
        self._send(handler, reply)

    def _send(self, handler: BaseHTTPRequestHandler, reply: Reply) -> None:
        status, said, *headers = reply
        if status == HANG:
            self._over.wait(30)
            return
        raw = said if isinstance(said, bytes) else json.dumps(said).encode()
        handler.send_response(status)
        for name, value in (headers[0] if headers else {}).items():
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(raw)))
        handler.end_headers()
        handler.wfile.write(raw)

    def __enter__(self) -> "Scripted":
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def byte_tokenizer(folder: Path, vocabulary: int = 700) -> Any:
    """A byte-level tokenizer with a beginning-of-sequence token and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    text = (resources.files("ropepatch.evaluate") / "texts" / "prose.txt").read_text("utf-8")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    made.chat_template = TEMPLATE
    made.save_pretrained(folder)
    return made


def byte_llama(folder: Path) -> Path:
    """A tiny random Llama that reads 1,024 tokens of such a tokenizer."""
    size = len(byte_tokenizer(folder))
    model = tiny.build(tiny.llama_config(vocab_size=size, max_position_embeddings=1024))
    model.save_pretrained(folder)
    return folder


@contextmanager
def transformers_serve(*arguments: str) -> Iterator[str]:
    """Run it; yields its URL once it answers."""
    port = free_port()
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", *arguments]
    log = subprocess.DEVNULL
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"],
        env=environment,
        stdout=log,
        stderr=log,
    ) as process:
        try:
            _wait(f"http://127.0.0.1:{port}/health", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _wait(url: str, process: "subprocess.Popen[bytes]", seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError("the server did not come up")
