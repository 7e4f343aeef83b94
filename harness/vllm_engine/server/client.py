"""Speaks HTTP with one server: what it is, and completions as they stream."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx
import orjson

from harness.vllm_engine.server.completion import Completion
from harness.vllm_engine.server.fault import (
    Fault,
    ServerFaultError,
    error_of_status,
    shortened,
)
from harness.vllm_engine.server.options import ServerOptions
from results.naming import number_of

RETRY_AFTER_S = (0.5, 1.0, 2.0)
"""Waits before a connection is tried again; never after the first byte of an answer."""

CONNECT_S = 10.0
LOOK_S = 10.0
"""Longest wait for a connection, and for an answer to anything but a completion."""

KEEP_IDLE_S = 2.0
"""An idle connection is given up before the server (uvicorn: 5 s) closes it."""

_NS_PER_S = 1_000_000_000
_CANNOT_CONNECT = (httpx.ConnectError, httpx.ConnectTimeout)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to anything but a completion."""

    status: int
    content_type: str
    body: bytes

    def json(self) -> Any:
        """Its body as JSON; None where it is none."""
        try:
            return orjson.loads(self.body)
        except ValueError:
            return None


class ServerClient:
    """A connection pool to one server.

    Neither proxies nor .netrc of the environment are used: a proxy would be measured too,
    and the key comes from where it is said to.

    Attributes:
        num_retries: Connections that had to be tried again.
        last_sign_ns: When an answer or a token of any completion came, by
            ``perf_counter``; a server that sends empty events gets nothing done.
    """

    def __init__(self, options: ServerOptions) -> None:
        self.url = options.url
        self.num_retries = 0
        self.last_sign_ns = time.perf_counter_ns()
        self._secret = options.api_key
        headers = {"Accept-Encoding": "identity"}
        if options.api_key:
            headers["Authorization"] = f"Bearer {options.api_key}"
        is_secure = options.url.startswith("https:")
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            limits=httpx.Limits(
                max_connections=None,
                max_keepalive_connections=None,
                keepalive_expiry=KEEP_IDLE_S,
            ),
            trust_env=False,
            verify=ssl.create_default_context() if is_secure else False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def get(self, path: str, *, timeout_s: float = LOOK_S) -> Answer:
        """What the server says to a GET, whatever its status.

        Raises:
            ServerFaultError: It does not answer in time, or cannot be reached.
        """
        return await self._look("GET", path, timeout_s)

    async def post(self, path: str, *, timeout_s: float = LOOK_S) -> Answer:
        """What the server says to an empty POST, whatever its status.

        Raises:
            ServerFaultError: It does not answer in time, or cannot be reached.
        """
        return await self._look("POST", path, timeout_s)

    async def _look(self, method: str, path: str, timeout_s: float) -> Answer:
        with self._faults_in_words(f"{method} {path}", timeout_s):
            async with asyncio.timeout(timeout_s):
                response = await self._http.request(method, self.url + path)
        content_type = response.headers.get("content-type", "")
        return Answer(response.status_code, content_type, response.content)

    async def connect(self) -> None:
        """See whether anything listens, trying again as for a completion.

        Raises:
            ServerFaultError: Nothing does.
        """
        for wait_s in (*RETRY_AFTER_S, None):
            try:
                await self.get("/health")
                return
            except ServerFaultError as fault:
                if wait_s is None or not isinstance(fault.__cause__, _CANNOT_CONNECT):
                    raise
            self.num_retries += 1
            await asyncio.sleep(wait_s)

    async def complete(self, body: bytes, completion: Completion) -> None:
        """Send a completion and follow its stream to the end, noting what comes.

        A connection that fails before the first byte of the answer is tried again after
        ``RETRY_AFTER_S``; after it, never: the server has begun the work.

        Raises:
            ServerFaultError: The server cannot go on.
            RequestRefusedError: It does not take this request.
        """
        for wait_s in (*RETRY_AFTER_S, None):
            try:
                with self._faults_in_words("a completion", CONNECT_S):
                    await self._follow(body, completion)
                return
            except ServerFaultError as fault:
                if wait_s is None or completion.is_begun or not _is_unheard(fault):
                    raise
            self.num_retries += 1
            await asyncio.sleep(wait_s)

    async def _follow(self, body: bytes, completion: Completion) -> None:
        request = self._http.stream(
            "POST",
            f"{self.url}/v1/completions",
            content=body,
            headers={"Content-Type": "application/json"},
        )
        async with request as response:
            self.last_sign_ns = time.perf_counter_ns()
            completion.is_begun = True
            try:
                await self._check(response)
                async for data, now_ns in _events(response):
                    completion.take(data, now_ns)
                    if completion.last_token_ns == now_ns:
                        self.last_sign_ns = now_ns
            except httpx.TransportError as error:
                raise _broke_off(completion, error) from error
        if not completion.is_whole:
            raise _broke_off(completion, None)

    async def _check(self, response: httpx.Response) -> None:
        """Refuse an answer that is no stream of events."""
        content_type = response.headers.get("content-type", "")
        if response.status_code == 200 and "event-stream" in content_type:
            return
        body = await response.aread()
        if response.status_code == 200:
            raise ServerFaultError(
                Fault.ERROR,
                f"the server answered a completion with {content_type or 'something'}"
                " and no stream of events; is it an OpenAI-compatible server?",
            )
        raise error_of_status(response.status_code, body, secret=self._secret)

    @contextmanager
    def _faults_in_words(self, what: str, timeout_s: float) -> Iterator[None]:
        try:
            yield
        except (TimeoutError, httpx.TimeoutException) as error:
            raise ServerFaultError(
                Fault.UNRESPONSIVE,
                f"{self.url} did not answer {what} within {timeout_s:g} s",
            ) from error
        except _CANNOT_CONNECT as error:
            raise ServerFaultError(
                Fault.LOST,
                f"nothing can be reached at {self.url}: {_reason(error)}; start the"
                " server, or correct --url",
            ) from error
        except (httpx.ReadError, httpx.WriteError, httpx.CloseError) as error:
            raise ServerFaultError(
                Fault.LOST, f"{self.url} broke the connection: {_reason(error)}"
            ) from error
        except httpx.TransportError as error:
            if _is_silent_end(error):
                raise ServerFaultError(
                    Fault.LOST, f"{self.url} closed the connection without an answer"
                ) from error
            raise ServerFaultError(
                Fault.ERROR,
                f"what answers at {self.url} does not speak HTTP as a server of vLLM"
                f" does: {_reason(error)}; is another program on that port?",
            ) from error


async def _events(response: httpx.Response) -> AsyncIterator[tuple[bytes, int]]:
    """The data of each event, and when its last byte came."""
    rest = b""
    async for piece in response.aiter_raw():
        now_ns = time.perf_counter_ns()
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:") and (data := line[5:].strip()):
                yield data, now_ns


def _is_unheard(fault: ServerFaultError) -> bool:
    """Whether a fault came before the first byte of an answer."""
    cause = fault.__cause__
    unheard = (*_CANNOT_CONNECT, httpx.ReadError, httpx.WriteError)
    return isinstance(cause, unheard) or _is_silent_end(cause)


def _is_silent_end(error: BaseException | None) -> bool:
    is_protocol = isinstance(error, httpx.RemoteProtocolError)
    return is_protocol and "without sending" in str(error)


def _broke_off(completion: Completion, error: Exception | None) -> ServerFaultError:
    why = "it ended without its last event" if error is None else _reason(error)
    return ServerFaultError(
        Fault.LOST,
        f"a stream broke off after {number_of(completion.num_chunks, 'chunk')}: {why}",
    )


def _reason(error: Exception) -> str:
    return shortened(str(error)) or type(error).__name__
