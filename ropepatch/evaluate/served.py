"""A model behind an address: where it is, and whether it is there."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from ropepatch.errors import EndpointError

CONNECT_SECONDS = 5.0
CHECK_SECONDS = 10.0
"""For the list of models, all in all."""
_MOST_NAMES = 10
_REASON = 200
"""Characters of a reason that are kept."""


@dataclass(frozen=True)
class Served:
    """A model on a server that speaks OpenAI's API.

    Raises:
        EndpointError: a value is out of its range.
    """

    url: str
    """With or without /v1."""
    model: str
    """As the server names it."""
    key: str = field(default_factory=lambda: os.environ.get("OPENAI_API_KEY", ""), repr=False)
    timeout: float = 120.0
    """Seconds for one request."""
    concurrency: int = 4
    """Requests at a time."""
    retries: int = 3
    """After no connection, no answer in time, 408, 429 or 5xx."""
    pause: float = 0.5
    """Seconds before the first retry; twice as long before each further one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", _base(self.url))
        key = self.key.strip() or "none"
        if not (key.isascii() and key.isprintable()):
            raise EndpointError("OPENAI_API_KEY holds characters that no HTTP header can carry.")
        object.__setattr__(self, "key", key)
        if not 0 < self.timeout < float("inf"):
            raise EndpointError(f"a timeout of {self.timeout:g} seconds is none; take more than 0.")
        if self.concurrency < 1:
            raise EndpointError(f"{self.concurrency} requests at a time are none; take 1 or more.")
        if self.retries < 0 or self.pause < 0:
            raise EndpointError("retries and the pause before them must be 0 or more.")

    def client(self) -> Any:
        """One of `openai`, for any number of threads.

        Its own retries are off: they sleep where nothing can wake them, and a run that is stopped
        must not go on asking.

        Raises:
            EndpointError: the package is missing.
        """
        lib = openai()
        patience = lib.Timeout(self.timeout, connect=min(self.timeout, CONNECT_SECONDS))
        return lib.OpenAI(base_url=self.url, api_key=self.key, timeout=patience, max_retries=0)

    def check(self) -> None:
        """See whether the server is there and has the model, before anything is measured.

        Raises:
            EndpointError: it is not, or has another, or `openai` is missing.
        """
        where = f"{self.url}/models"
        raw = self._models(where)
        try:
            listed = [entry for entry in json.loads(raw)["data"] or [] if entry["id"]]
        except (ValueError, KeyError, TypeError):
            raise EndpointError(
                f"{where} does not list models as OpenAI's API does; is this the right URL?"
            ) from None
        names = [str(entry["id"]) for entry in listed]
        if names and self.model not in names and not _loads_others(listed):
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            known = ", ".join(f"'{name}'" for name in names[:_MOST_NAMES])
            raise EndpointError(f"{self.url} does not serve '{self.model}'; it has {known}{more}.")

    def _models(self, where: str) -> bytes:
        lib = openai()
        patience = lib.Timeout(CHECK_SECONDS, connect=CONNECT_SECONDS)
        try:
            with self.client() as client:
                models = client.models.with_raw_response
                return _within(CHECK_SECONDS, lambda: bytes(models.list(timeout=patience).content))
        except (lib.APITimeoutError, Empty):
            raise EndpointError(
                f"{where} does not answer within {CHECK_SECONDS:g} seconds; is the server up?"
            ) from None
        except lib.APIConnectionError as error:
            raise EndpointError(
                f"{where} cannot be reached ({reason(error)}); start the server or correct the URL."
            ) from None
        except lib.APIStatusError as error:
            hint = "look into the server's log."
            if error.status_code in (401, 403):
                hint = "set OPENAI_API_KEY to the key of the server."
            elif error.status_code in (404, 405):
                hint = "this is no OpenAI-compatible server, or its URL lacks a part."
            raise EndpointError(f"{where} answers {reason(error)}; {hint}") from None


def openai() -> Any:
    """The package, which only served models need.

    Raises:
        EndpointError: it is missing.
    """
    try:
        import openai as lib
    except ImportError:
        raise EndpointError(
            "asking a served model needs the openai package: pip install 'ropepatch[endpoint]'."
        ) from None
    return lib


def reason(error: Exception) -> str:
    """Why a request failed, in one line."""
    status = getattr(error, "status_code", None)
    if status is not None:
        text = f"{status}: {_message(getattr(error, 'body', None)) or 'no reason given'}"
    else:
        text = str(error).rstrip(".")
        text = f"{text}: {error.__cause__}" if str(error.__cause__ or "") else text
    return " ".join(text.split())[:_REASON]


def _message(body: Any) -> str:
    """What a server says about a failure: each has its own place for it."""
    if isinstance(body, Mapping):
        said = next((body[k] for k in ("message", "detail", "error") if body.get(k)), None)
        return str(body or "") if said is None else _message(said)
    return str(body or "")


def _base(url: str) -> str:
    """The address that routes are appended to."""
    try:
        parts = urlsplit(url.strip())
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        whole = whole and not (parts.query or parts.fragment) and not _has_space(url.strip())
    except ValueError:
        whole = False
    if not whole:
        raise EndpointError(
            f"'{url}' is no URL of a server; write it like http://localhost:8000/v1."
        )
    if parts.username is not None or parts.password is not None:
        raise EndpointError("the URL holds a user name or password; set OPENAI_API_KEY instead.")
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path if path.endswith('/v1') else path + '/v1'}"


def _has_space(url: str) -> bool:
    return any(letter.isspace() or not letter.isprintable() for letter in url)


def _loads_others(listed: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the server may load models on request that it does not list yet.

    `transformers serve` does, and says of each model that it lists whether it is loaded; servers
    of one model do not say so.
    """
    return all(isinstance(entry.get("status"), Mapping) for entry in listed)


def _within(seconds: float, work: Callable[[], bytes]) -> bytes:
    """The result of some work; `Empty` when it takes longer. Looking up a name has no timeout."""
    results: SimpleQueue[bytes | Exception] = SimpleQueue()

    def tell() -> None:
        try:
            results.put(work())
        except Exception as error:
            results.put(error)

    Thread(target=tell, daemon=True, name="ropepatch-checks").start()
    result = results.get(timeout=seconds)
    if isinstance(result, Exception):
        raise result
    return result
