import socket
import sys
import threading
import time
from typing import Any

import pytest

from ropepatch.errors import EndpointError
from ropepatch.evaluate import served as served_module
from ropepatch.evaluate.served import Served
from tests.evaluate.served import HANG, Reply, Scripted, free_port


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def nothing(path: str, body: Any) -> Reply:
    raise AssertionError("nothing is to be asked")


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Served("http://x", "m").key == "none"
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    one = Served("http://x", "m")
    assert one.key == "secret"
    assert "secret" not in repr(one)


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://h:8000", "http://h:8000/v1"),
        ("http://h:8000/", "http://h:8000/v1"),
        ("https://h/v1", "https://h/v1"),
        (" https://h/v1/ ", "https://h/v1"),
        ("https://h/api", "https://h/api/v1"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
    ],
)
def test_a_url_goes_with_or_without_v1(url: str, base: str) -> None:
    assert Served(url, "m").url == base


@pytest.mark.parametrize(
    "url",
    ["", "h:8000", "localhost", "ftp://h", "http://", "http://h:x", "file:///etc", "http://h/?a=1",
     "http://h h", "http://[::1"],
)  # fmt: skip
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(EndpointError, match="is no URL of a server"):
        Served(url, "m")


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(EndpointError, match="set OPENAI_API_KEY instead") as caught:
        Served("http://me:hush@h/v1", "m")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [{"timeout": 0}, {"timeout": float("nan")}, {"concurrency": 0}, {"retries": -1}, {"key": "é"}],
)
def test_values_out_of_range_are_refused(words: dict[str, Any]) -> None:
    with pytest.raises(EndpointError):
        Served("http://h", "m", **words)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((200, {"data": [{"id": "other"}]}), "does not serve 'm'; it has 'other'."),
        ((200, {"data": [{"id": str(i)} for i in range(12)]}), "'9' and 2 more."),
        ((200, b"<html>"), "does not list models as OpenAI's API does"),
        ((200, ["m"]), "does not list models as OpenAI's API does"),
        ((401, {"error": {"message": "no key"}}), "answers 401: no key; set OPENAI_API_KEY"),
        ((404, {"detail": "Not Found"}), "answers 404: Not Found; this is no OpenAI-compatible"),
        ((503, {}), "answers 503: no reason given; look into the server's log."),
        ((HANG, None), "does not answer within 0.5 seconds"),
    ],
)
def test_check_refuses_in_one_line(
    reply: Reply, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reply[0] == HANG:
        monkeypatch.setattr(served_module, "CHECK_SECONDS", 0.5)
    with Scripted(nothing) as server:
        server.models = reply
        with pytest.raises(EndpointError) as caught:
            Served(server.url, "m").check()
    assert words in str(caught.value)
    assert str(caught.value).startswith(server.url)
    assert "\n" not in str(caught.value)


def test_check_of_nobody() -> None:
    with pytest.raises(EndpointError, match=r"/v1/models cannot be reached \(.*Connection refused"):
        Served(f"http://127.0.0.1:{free_port()}", "m").check()


def test_check_of_a_name_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(EndpointError, match=r"h/v1/models cannot be reached \(.*Name or service"):
        Served("http://h", "m").check()


def test_check_waits_no_longer_for_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    known = threading.Event()

    def slow(*_: Any, **__: Any) -> Any:
        known.wait(20)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    monkeypatch.setattr(served_module, "CHECK_SECONDS", 0.3)
    start = time.monotonic()
    with pytest.raises(EndpointError, match="does not answer within"):
        Served("http://h", "m").check()
    assert time.monotonic() - start < 10
    known.set()


@pytest.mark.parametrize(
    "listed",
    [
        [{"id": "other"}, {"id": "m"}],
        [],  # `transformers serve` before its first request
        [{"id": "other", "status": {"value": "unloaded"}}],  # and after, for another model
    ],
)
def test_check_lets_pass(listed: Any) -> None:
    with Scripted(nothing) as server:
        server.models = (200, {"object": "list", "data": listed})
        Served(server.url, "m").check()
    assert not server.asked


def test_without_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(EndpointError, match=r"pip install 'ropepatch\[endpoint\]'"):
        Served("http://h", "m").check()
