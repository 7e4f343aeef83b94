"""What options that are not modelled mean for advice that was found without them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bench_cli.shell_word import Word


@dataclass(frozen=True, slots=True)
class _Limit:
    """Options, as one pattern of their names, and how they limit the advice."""

    names: str
    says: str


_LIMITS = (
    _Limit(
        r"--speculative-.*|-sc|--num-speculative-tokens|--spec-.*"
        r"|--ngram-.*|--num-lookahead-slots",
        "speculative decoding is not modelled: real steps yield several tokens, and the"
        " drafts take memory from the KV cache, so that latencies and blocks differ",
    ),
    _Limit(
        r"--kv-offloading-backend|--kv-transfer-config|--kv-connector.*",
        "KV connectors are not modelled: what they load and save is neither timed nor"
        " counted as hits, so that advice on offloading may not hold",
    ),
    _Limit(
        r"--ec-transfer-config|--kv-role",
        "disaggregated serving is not modelled: the advice is for one engine that does"
        " prefill and decode",
    ),
    _Limit(
        r"--data-parallel-.*|-dp[a-z]*|--dp-.*|--headless",
        "data parallelism is not modelled: the advice is for one replica that serves the"
        " whole trace; split the trace first",
    ),
    _Limit(
        r"--(no-)?enable-expert-parallel|-ep|--expert-.*|--(no-)?enable-eplb|--eplb-.*"
        r"|--all2all-backend|--moe-.*|--(no-)?enable-(ep|elastic-ep|dbo)(-.*)?",
        "expert parallelism is not modelled: step times and memory of the weights differ",
    ),
    _Limit(
        r"--pipeline-parallel-size|-pp|--nnodes|-n|--node-rank|-r|--master-.*",
        "pipeline stages and several nodes are not modelled: blocks and step times are"
        " those of tensor parallelism alone",
    ),
    _Limit(
        r"--(decode|prefill)-context-parallel-size|-dcp|-pcp|--dcp-.*|--cp-.*",
        "context parallelism is not modelled: each GPU then holds a part of every"
        " sequence, and more tokens fit than the advice counts with",
    ),
    _Limit(
        r"--(no-)?enable-lora.*|--.*-?loras?(-.*)?|--lora-.*",
        "LoRA is not modelled: adapters take memory from the KV cache and time in each"
        " step, and split prefix hits by adapter",
    ),
    _Limit(
        r"--limit-mm-per-prompt|--mm-.*|--(no-)?.*-mm-.*|--language-model-only"
        r"|--media-io-kwargs|--allowed-.*media.*|--video-.*",
        "multimodal input is not modelled: encoders take memory and time, and images"
        " count as tokens of the prompt only if the trace has them",
    ),
    _Limit(
        r"--cpu-offload-.*|--offload-.*",
        "weights on the CPU are not modelled: they leave more memory to the KV cache and"
        " make steps longer",
    ),
    _Limit(
        r"--compilation-config|-cc|-O.*|--optimization-level|--(max-)?cudagraph-.*"
        r"|--max-seq-len-to-capture|--max-context-len-to-capture|--attention-.*|-ac",
        "compilation, CUDA graphs and attention kernels other than the default are not"
        " modelled: memory and step times differ",
    ),
    _Limit(
        r"--num-scheduler-steps|--scheduler-(cls|delay-factor)|--max-.*partial-prefills"
        r"|--max-num-(scheduled-tokens|active-seqs|queued-.*)|--prefill-schedule-interval"
        r"|--(no-)?long-prefill-token-threshold-adaptive|--performance-mode",
        "this way of scheduling is not modelled: batches and waiting times differ",
    ),
    _Limit(
        r"--config",
        "options in that file are not read here, and those of the line go before them",
    ),
)

_FRONT_END = re.compile(
    r"-asc|--(api-server-count|host|port|uds|api-key|root-path|served-model-name|ssl-.*|uvicorn-.*"
    r"|(no-)?allow-credentials|allowed-(origins|methods|headers)|middleware"
    r"|chat-template.*|response-role|tool-call-parser|tool-parser-plugin"
    r"|(no-)?enable-auto-tool-choice|reasoning-parser|(no-)?enable-reasoning"
    r"|(no-)?trust-remote-code|tokenizer|tokenizer-mode|revision|.*-revision"
    r"|download-dir|load-format|hf-token|seed|(no-)?disable-log-.*"
    r"|(no-)?enable-log-.*|max-log-len|generation-config|disable-fastapi-docs)"
)
_DISAGGREGATED = re.compile(r"kv_(producer|consumer)")

NOT_MODELLED = "not modelled; whether the advice depends on it is not known"
FRONT_END = "about the front end and loading; the advice does not depend on it"


def limits_of(kept: Sequence[str]) -> list[str]:
    """A sentence for each option that is kept: how it limits the advice.

    Options of the front end, which do not limit it, share the last sentence; options with
    the same limit share one too.
    """
    flags_of: dict[str, list[str]] = {}
    words = [Word.read(raw) for raw in kept]
    for place, word in enumerate(words):
        if word.is_flag:
            flag = word.value.partition("=")[0]
            following = words[place + 1].value if place + 1 < len(words) else ""
            flags = flags_of.setdefault(_says(word.value, following), [])
            flags += [] if flag in flags else [flag]
    by_rank = sorted(flags_of, key=[*_SENTENCES, NOT_MODELLED, FRONT_END].index)
    return [f"{', '.join(flags_of[says])}: {says}" for says in by_rank]


def flags_not_checked(kept: Sequence[str]) -> list[str]:
    """Options that are kept whether or not the version has them, each once.

    Those of the front end, which every version has, or nearly, are left out.
    """
    flags = (
        word.value.partition("=")[0] for word in map(Word.read, kept) if word.is_flag
    )
    return [flag for flag in dict.fromkeys(flags) if _says(flag, "") != FRONT_END]


_SENTENCES = [limit.says for limit in _LIMITS]
_DISAGGREGATION = next(
    limit.says for limit in _LIMITS if limit.says.startswith("disaggregated")
)


def _says(flag: str, following: str) -> str:
    """How an option limits the advice, by its name, or by its value if that says more."""
    text = flag.partition("=")[0]
    name = text.partition(".")[0].replace("_", "-") if text.startswith("--") else text
    value = flag.partition("=")[2] or following
    if name == "--kv-transfer-config" and _DISAGGREGATED.search(value):
        return _DISAGGREGATION
    if _FRONT_END.fullmatch(name):
        return FRONT_END
    found = (limit.says for limit in _LIMITS if re.fullmatch(limit.names, name))
    return next(found, NOT_MODELLED)
