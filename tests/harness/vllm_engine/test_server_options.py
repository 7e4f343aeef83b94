"""Tests for :mod:`harness.vllm_engine.server.options`."""

import pytest

from harness.errors import UsageError
from harness.vllm_engine.server.options import ServerOptions


@pytest.mark.parametrize(
    ("given", "root"),
    [
        ("http://localhost:8000", "http://localhost:8000"),
        ("localhost:8000/", "http://localhost:8000"),
        (" https://llm.example/v1 ", "https://llm.example"),
        ("http://h:1/team/v1/completions", "http://h:1/team"),
        ("http://[::1]:8000/metrics", "http://[::1]:8000"),
    ],
)
def test_root_of_a_server(given: str, root: str) -> None:
    """A URL is taken with or without its scheme and what vLLM has under it."""
    assert ServerOptions(url=given).url == root


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("http://me:secret@host:80", "VLLM_API_KEY"),
        ("http://secret@host", "VLLM_API_KEY"),
        ("ftp://host", "no URL of a server"),
        ("http://", "no URL of a server"),
        ("", "no URL of a server"),
        ("http://host:99999", "cannot be read"),
        ("http://host:0", "no URL of a server"),
        ("http://host?key=secret", "after its path"),
    ],
)
def test_what_is_no_root_is_refused(given: str, told: str) -> None:
    """A URL that cannot be used is refused, and no secret in it is repeated."""
    with pytest.raises(UsageError, match=told) as caught:
        ServerOptions(url=given)

    assert "secret" not in str(caught.value)


def test_the_key_is_never_shown() -> None:
    """Options that are printed or logged do not show the key."""
    assert "sk-1" not in repr(ServerOptions(url="h:1", api_key="sk-1"))


def test_numbers_are_checked() -> None:
    """A number without a sense is refused."""
    with pytest.raises(UsageError, match="hang_after is 0 s"):
        ServerOptions(url="h:1", hang_after_s=0)
    with pytest.raises(UsageError, match="vocab_size is 1"):
        ServerOptions(url="h:1", vocab_size=1)
