"""Models named by a hub id, against a hub that runs on this machine."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlparse

import pytest

from tests.end_to_end.program import Answer, process
from tests.tiny import make_llama

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "someone/tiny"


class Hub(BaseHTTPRequestHandler):
    """The few answers of the hub that a download needs."""

    folder: Path
    asked: list[str]

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = urlparse(self.path).path
        files = sorted(p.name for p in self.folder.iterdir())
        if path.startswith(f"/api/models/{REPO}/tree/"):
            tree = [
                {"type": "file", "path": n, "size": (self.folder / n).stat().st_size, "oid": n}
                for n in files
            ]
            self._send(json.dumps(tree).encode(), body=body)
        elif path.startswith(f"/api/models/{REPO}"):
            info = {"id": REPO, "sha": COMMIT, "siblings": [{"rfilename": n} for n in files]}
            self._send(json.dumps(info).encode(), body=body)
        elif path.startswith(f"/{REPO}/resolve/") and path.rsplit("/", 1)[-1] in files:
            name = path.rsplit("/", 1)[-1]
            type(self).asked.append(name)
            self._send((self.folder / name).read_bytes(), body=body, etag=name)
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _send(self, content: bytes, *, body: bool, etag: str = "api") -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(content)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """Address of a hub with one model, and the files it was asked for."""
    Hub.folder, Hub.asked = make_llama(tmp_path / "served"), []
    (Hub.folder / "model.onnx").write_bytes(b"large")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", Hub.asked
    server.shutdown()
    server.server_close()
    thread.join()


def run(hub: str, tmp_path: Path, *arguments: str) -> Answer:
    """The command line with its hub here and its cache in the test's folder."""
    return process(
        *arguments,
        cwd=tmp_path,
        HF_ENDPOINT=hub,
        HF_HOME=str(tmp_path / "cache"),
        HF_HUB_OFFLINE="0",
        HF_HUB_DISABLE_XET="1",
        NO_PROXY="127.0.0.1",
    )


def test_inspect_fetches_the_config_alone(hub: tuple[str, list[str]], tmp_path: Path) -> None:
    address, asked = hub
    done = run(address, tmp_path, "inspect", REPO, "--json")
    assert done.code == 0, done.err
    assert done.json["model_type"] == "llama"
    assert set(asked) == {"config.json"}


def test_extend_from_the_cache(hub: tuple[str, list[str]], tmp_path: Path) -> None:
    address, asked = hub
    arguments = ["extend", "-m", REPO, "--method", "yarn", "-f", "4", "--no-verify"]
    done = run(address, tmp_path, *arguments, "--revision", "main")
    assert done.code == 0, done.err
    assert "model.onnx" not in asked
    (written,) = tmp_path.glob("*-yarn-*")  # beside nobody's cache: in the working directory
    record = json.loads((written / "ropepatch.json").read_text())
    assert record["source"]["model"] == REPO
    assert record["source"]["revision"] == COMMIT
    weights = written / "model.safetensors"
    assert weights.is_file()
    assert not weights.is_symlink()
    assert weights.read_bytes() == (Hub.folder / "model.safetensors").read_bytes()


def test_a_model_the_hub_lacks_is_one_line(hub: tuple[str, list[str]], tmp_path: Path) -> None:
    done = run(hub[0], tmp_path, "inspect", "someone/else")
    assert done.code == 2
    assert done.err.startswith("ropepatch: someone/else")
    assert done.err.count("\n") == 1
