"""Random scenarios for the v1 policy, small and each the work of its seed alone.

A profile steers a scenario to a corner that uniform draws rarely reach. Three things
never occur: prompts that reach ``max_model_len``, which vLLM refuses before its scheduler
sees them; an offload tier under a sliding window or without prefix caching; and one of
blocks of one token, where vLLM loads a prompt of one token again and again.
"""

import random
from typing import Any

Scenario = dict[str, Any]
Prompt = list[list[int]]

# What is drawn for a scenario; a profile replaces some of it. Lengths are in tokens,
# names that begin with p_ are probabilities.
CHOICES: dict[str, list[Any]] = {
    "block_size": [1, 2, 3, 4, 4, 5, 7, 8, 8, 16, 16, 32, 64],
    "num_requests": [10, 20, 40, 70],
    "prompt_blocks": [2, 5, 10, 20],  # the longest new prompt
    "max_output": [3, 10, 40, 80],
    "num_samples": [1, 1, 1, 2, 4],
    "enable_prefix_caching": [True, True, True, False],
    "max_num_seqs": [1, 2, 4, 8, 16, 64],
    "chunked_prefill": [True, True, True, False],
    "chunk": [4, 16, 32, 100, 500],  # budget in tokens, where prefills are chunked
    "long_prefill_token_threshold": [0, 0, 0, 3, 20, 60],
    "watermark": [0.0, 0.0, 0.01, 0.05, 0.2],
    "scheduler_reserve_full_isl": [True, True, False],
    "async_scheduling": [False, True],
    "scheduling_policy": ["fcfs", "fcfs", "priority"],
    "sliding_window": [None],
    "offload_factor": [0],  # in GPU pools
    "transfer_steps": [1, 2, 3],
    "gpu_factor": [1, 1, 1.3, 2, 4, 20],  # in longest requests; below 1 is too large
    "limit_factor": [0.6, 1, 1, 1.5],  # max_model_len, in longest requests
    "arrivals": ["at once", "bursts", "steady", "waves", "sparse"],
    "num_salts": [0, 0, 0, 2],
    "p_several": [0.5],  # a request has several samples
    "p_system": [0, 0.3, 0.7],  # a prompt begins with a shared part
    "p_same": [0.1, 0.3],  # a prompt is that of an earlier request
    "p_continued": [0, 0.3, 0.6],  # a prompt goes on from an earlier output
    "p_whole_blocks": [0.1, 0.5],  # a prompt fills its blocks
    "p_one_token": [0.1],  # an output is a single token
}

PRESSURE = {"gpu_factor": [1, 1, 1.2, 1.5, 2], "num_requests": [40, 70]}
OFFLOAD = {
    "offload_factor": [0.1, 0.3, 1, 4],
    "block_size": [2, 3, 4, 4, 5, 7, 8, 8, 16, 16, 32, 64],
    "enable_prefix_caching": [True],
    "p_same": [0.2, 0.4],
    "p_continued": [0.4, 0.7],
    "max_output": [3, 10, 40],
}
PROFILES: dict[str, dict[str, list[Any]]] = {
    "general": {},
    "cached pressure": PRESSURE | {"enable_prefix_caching": [True], "p_system": [0.5]},
    "asynchronous pressure": PRESSURE | {"async_scheduling": [True]},
    "priorities": PRESSURE | {"scheduling_policy": ["priority"]},
    "window": {"sliding_window": [1, 5, 20, 64, 150], "gpu_factor": [0.5, 1, 2, 4]},
    "window under pressure": PRESSURE | {"sliding_window": [5, 20, 64]},
    "offload": OFFLOAD,
    "offload under pressure": OFFLOAD | PRESSURE,
    "offload, few blocks": OFFLOAD | {"gpu_factor": [1], "block_size": [2, 4, 16]},
    "too large": {"gpu_factor": [0.3, 0.6, 0.9], "num_requests": [5, 10, 20]},
    "parallel": {"num_samples": [2, 3, 5], "max_num_seqs": [4, 16, 64]},
}


def generate(seed: int, attempt: int = 0) -> Scenario:
    """A scenario, always the same for the same arguments."""
    return _Writer(random.Random(f"v1-{seed}-{attempt}"), f"random_{seed:04d}").scenario()


class _Writer:
    """Draws one scenario."""

    def __init__(self, rng: random.Random, name: str) -> None:
        self.rng = rng
        self.name = name
        choices = CHOICES | PROFILES[rng.choice(list(PROFILES))]
        self.drawn = {key: rng.choice(values) for key, values in choices.items()}
        self.max_prompt = min(600, self.drawn["prompt_blocks"] * self.drawn["block_size"])
        self.longest = self.max_prompt + self.drawn["max_output"]
        self.config = self._config()
        self.segments: dict[str, int] = {}
        self.num_users = 0

    def scenario(self) -> Scenario:
        """Put it together."""
        requests: list[dict[str, Any]] = []
        step = self.rng.choice([0, 0, 3])
        for request_id in range(self.drawn["num_requests"]):
            requests.append(self._request(request_id, step, requests[-12:]))
            step += self._gap()
        return {
            "name": self.name,
            "policy": "v1",
            "config": self.config,
            "segments": list(self.segments),
            "requests": requests,
        }

    def _chance(self, name: str) -> bool:
        return bool(self.rng.random() < self.drawn[name])

    def _config(self) -> dict[str, Any]:
        drawn = self.drawn
        max_model_len = max(3, int(self.longest * drawn["limit_factor"]))
        longest_blocks = -(-min(self.longest, max_model_len) // drawn["block_size"])
        num_gpu_blocks = 1 + max(1, int(longest_blocks * drawn["gpu_factor"]))
        budget = drawn["chunk"] if drawn["chunked_prefill"] else max_model_len
        kept = (
            "block_size", "max_num_seqs", "enable_prefix_caching", "watermark",
            "long_prefill_token_threshold", "scheduler_reserve_full_isl",
            "async_scheduling", "chunked_prefill", "scheduling_policy",
        )  # fmt: skip
        config = {key: drawn[key] for key in kept} | {
            "num_gpu_blocks": num_gpu_blocks,
            "max_num_batched_tokens": max(drawn["max_num_seqs"], budget),
            "max_model_len": max_model_len,
        }
        if drawn["sliding_window"] is not None:
            config["sliding_window"] = drawn["sliding_window"]
        if drawn["offload_factor"]:
            tier = max(1, int(num_gpu_blocks * drawn["offload_factor"]))
            config |= {"offload_blocks": tier, "transfer_steps": drawn["transfer_steps"]}
        return config

    def _gap(self) -> int:
        """Steps to the next arrival."""
        pauses = {
            "at once": (0, 0, 0),
            "bursts": (0.15, 3, 30),
            "steady": (0.8, 1, 3),
            "waves": (0.1, 40, 120),
            "sparse": (1, 0, 20),
        }
        p_pause, low, high = pauses[self.drawn["arrivals"]]
        return self.rng.randint(low, high) if self.rng.random() < p_pause else 0

    def _request(
        self, request_id: int, step: int, earlier: list[dict[str, Any]]
    ) -> dict[str, Any]:
        lengths = self._lengths()
        for sample in range(len(lengths)):
            self._segment(f"o{request_id}.{sample}")
        request = {
            "id": request_id,
            "step": step,
            "prompt": self._cut(self._prompt(earlier)),
            "output_tokens": lengths,
        }
        if self.drawn["scheduling_policy"] == "priority":
            request["priority"] = self.rng.randint(0, 3)
        if self.drawn["num_salts"]:
            salt = self.rng.randint(0, self.drawn["num_salts"])
            request["cache_salt"] = f"salt{salt}" if salt else ""
        return request

    def _lengths(self) -> list[int]:
        """Output tokens of each sample."""
        most = self.drawn["num_samples"]
        several = most > 1 and self._chance("p_several")
        return [
            1 if self._chance("p_one_token") else self._output_length()
            for _ in range(self.rng.randint(2, most) if several else 1)
        ]

    def _output_length(self) -> int:
        return self.rng.randint(1, int(self.drawn["max_output"]))

    def _prompt(self, earlier: list[dict[str, Any]]) -> Prompt:
        """Runs of segments: an earlier prompt, one continued, or a new one."""
        if earlier and self._chance("p_same"):
            return list(self.rng.choice(earlier)["prompt"])
        if earlier and self._chance("p_continued"):
            return self._continued(self.rng.choice(earlier))
        return self._new_prompt()

    def _continued(self, request: dict[str, Any]) -> Prompt:
        """The prompt and output of a request, or part of that, and a new turn."""
        rng, lengths = self.rng, request["output_tokens"]
        sample = rng.randrange(len(lengths))
        said = rng.choice([lengths[sample], rng.randint(1, lengths[sample])])
        prompt = [*request["prompt"], [self._segment(f"o{request['id']}.{sample}"), said]]
        return [*prompt, self._user(rng.randint(1, max(1, self.max_prompt // 3)))]

    def _new_prompt(self) -> Prompt:
        block_size = self.drawn["block_size"]
        length = self.rng.randint(1, self.max_prompt)
        if self._chance("p_whole_blocks"):
            length = max(1, length // block_size) * block_size
        if not self._chance("p_system"):
            return [self._user(length)]
        number = self.rng.randrange(3)
        shared = (block_size, 3 * block_size, max(1, self.max_prompt // 2))[number]
        return [[self._segment(f"system{number}"), shared], self._user(length)]

    def _cut(self, prompt: Prompt) -> Prompt:
        """As much of it as leaves room for a token under ``max_model_len``."""
        left = self.config["max_model_len"] - 1
        cut: Prompt = []
        for segment, length in prompt:
            if left:
                cut.append([segment, min(length, left)])
                left -= cut[-1][1]
        return cut

    def _user(self, length: int) -> list[int]:
        self.num_users += 1
        return [self._segment(f"u{self.num_users}"), length]

    def _segment(self, name: str) -> int:
        return self.segments.setdefault(name, len(self.segments))
