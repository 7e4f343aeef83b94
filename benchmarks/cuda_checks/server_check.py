"""The check of ``--engine server`` and ``observe`` on vLLM's own server."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.error import URLError
from urllib.request import urlopen

from cuda_checks.command import end_group
from cuda_checks.machine import watched
from cuda_checks.model import DUMMY, TINY, VOCAB_SIZE, write_model
from cuda_checks.plan import CheckFailedError, Turn
from cuda_checks.session import LOG_LINES, OFFLINE, Session

FLAGS = (
    f"--served-model-name tiny {DUMMY} --enforce-eager --block-size 32"
    " --num-gpu-blocks-override 256 --max-model-len 1024 --max-num-seqs 32"
    " --enable-prompt-tokens-details --host 127.0.0.1"
)
MODEST = "--gpu-memory-utilization 0.3"
POLL_S = 0.25


def server(session: Session, turn: Turn) -> None:
    """A server is started, replayed on and observed; counters agree with requests."""
    shape = {"num_requests": 48, "turns": 2, "input_len": 100, "output_len": 24}
    trace = session.trace("served", **shape, prefix_len=192, num_prefixes=3)
    with watched(is_cuda=session.is_cuda) as seen, started(session, turn) as url:
        turn.figures["start_s"] = turn.used_s
        words = ("run", trace.name, "--engine", "server", "--url", url)
        more = ("--vocab-size", VOCAB_SIZE, "--warmup", 2, "-o", "served")
        done = session.blockbench(*words, *more, "--json", "--force")
        leg = session.load(turn, "served", done, seen)
        summary, known = leg.run["summary"], leg.measurement
        turn.figures |= {
            "measurement": known,
            "counts": summary["counts"],
            "prefix_cache": summary["prefix_cache"],
            "latency_s": summary["latency_s"],
            "nvidia_smi": seen.document(),
        }
        turn.figures["observe"] = session.document("observe", "--url", url, "--for", "2s")
    hits = known["counters"]["prefix_cache_hit_tokens"]
    found = int(leg.requests["num_cached_tokens"].sum())
    if summary["counts"]["finished"] != len(leg.requests):
        raise CheckFailedError(f"{summary['counts']['finished']} requests finished")
    if hits != found or not hits:
        raise CheckFailedError(f"{hits} hit tokens in /metrics, {found} in the requests")


@contextmanager
def started(session: Session, turn: Turn) -> Iterator[str]:
    """Start vLLM's server on the tiny model; its address, once it answers.

    Raises:
        CheckFailedError: It ended before; the end of its log is in the figures.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = write_model(session.folder / "tiny", TINY)
    flags = [*FLAGS.split(), *(MODEST.split() if session.is_cuda else ())]
    module = ("-m", "vllm.entrypoints.openai.api_server")
    words = [sys.executable, "-P", *module, "--model", str(model), "--port", str(port)]
    log = session.folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*words, *flags],
            cwd=session.folder,
            env=os.environ | OFFLINE,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        while not _answers(url):
            if process.poll() is not None:
                raise CheckFailedError(f"the server ended with {process.returncode}")
            time.sleep(POLL_S)
        yield url
    except BaseException:
        turn.figures["log"] = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        raise
    finally:
        end_group(process)


def _answers(url: str) -> bool:
    with suppress(URLError, OSError), urlopen(f"{url}/health", timeout=2) as answer:
        return bool(answer.status == 200)
    return False
