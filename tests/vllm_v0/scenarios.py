"""Random scenarios for the v0 policy, small and each the work of its seed alone.

A profile steers a scenario to a corner that uniform draws rarely reach: groups under
pressure, a CPU pool that is nearly full, prompts over the limit ...
"""

import random
from typing import Any

Scenario = dict[str, Any]

# What is drawn for a scenario; a profile replaces some of it. Lengths are in tokens,
# names that begin with p_ are probabilities.
CHOICES: dict[str, list[Any]] = {
    "block_size": [1, 2, 3, 4, 4, 5, 7, 8, 8, 16, 16, 32],
    "num_requests": [10, 20, 30, 40],
    "prompt_scale": [0.3, 0.6, 1, 1, 1.5],
    "max_output": [3, 10, 20, 40, 60],
    "num_samples": [1, 1, 2, 3, 4],
    "enable_prefix_caching": [False, True],
    "chunked_prefill": [False, False, True],
    "preemption_mode": [None, None, "swap", "recompute"],
    "max_num_seqs": [2, 3, 4, 8, 16, 32, 64],
    "gpu_factor": [0.7, 1.2, 1.6, 2.2, 3, 5, 8, 20],  # in mean requests
    "cpu_factor": [0, 0.2, 0.6, 1, 3, 10, 10, 20],  # in GPU pools
    "limit_factor": [0.5, 1, 2, 4],  # max_model_len, in longest requests
    "budget_factor": [0.5, 1, 1, 2, 2, 2, 4, 4, 4],  # in max_model_len, not chunked
    "chunk": [4, 8, 8, 16, 16, 32, 64, 96, 128, 200],
    "arrivals": ["at once", "bursts", "steady", "waves", "sparse"],
    "p_several": [0.3, 0.6, 1],  # a request has several samples
    "p_even": [0, 0, 0.5],  # its samples are of one length
    "p_first_short": [0, 0.3],  # its first sample ends early
    "p_one_token": [0.1],  # each sample may be a single token
    "p_system": [0, 0.2, 0.4, 0.6],  # a prompt begins with a shared part
    "p_same": [0, 0.1, 0.3],  # a prompt repeats an earlier one
    "p_continued": [0, 0.2, 0.5],  # a prompt goes on from an earlier output
    "p_long": [0],  # a prompt may pass max_model_len
    "p_whole_blocks": [0.1, 0.4],  # a prompt fills its blocks
    "p_one_shot": [0],  # a short prompt of one sample of one token
}

PROFILES: dict[str, dict[str, list[Any]]] = {
    "general": {},
    "cached pressure": {
        "enable_prefix_caching": [True],
        "gpu_factor": [1.2, 1.6, 2.2, 3, 4],
        "p_system": [0.5],
        "p_continued": [0.4],
    },
    "parallel": {
        "num_samples": [2, 3, 4],
        "gpu_factor": [1.5, 2, 3, 5],
        "cpu_factor": [1, 3, 10],
    },
    "tiny pool, swap": {
        "preemption_mode": ["swap"],
        "gpu_factor": [0.5, 0.7, 1, 1.3],
        "cpu_factor": [3, 10, 40],
        "max_output": [20, 40, 60],
    },
    "recomputed groups": {
        "preemption_mode": ["recompute"],
        "num_samples": [2, 3],
        "gpu_factor": [1.5, 2, 3, 4],
    },
    "recomputed survivors": {
        "preemption_mode": ["recompute"],
        "num_samples": [2],
        "gpu_factor": [2, 3, 4, 6],
        "max_output": [20, 40],
        "p_even": [0],
        "p_first_short": [0.8],
        "enable_prefix_caching": [False, False, True],
    },
    "chunked groups": {
        "chunked_prefill": [True],
        "num_samples": [2, 3, 4],
        "max_num_seqs": [4, 8, 16],
        "chunk": [8, 12, 16, 24, 32, 48],
        "gpu_factor": [2, 3, 5, 8],
        "cpu_factor": [1, 3, 10],
    },
    "chunked, cached": {
        "chunked_prefill": [True],
        "enable_prefix_caching": [True],
        "preemption_mode": [None, "swap", "swap", "recompute"],
        "gpu_factor": [1.2, 1.6, 2.2, 3, 4],
        "cpu_factor": [1, 3, 10],
        "p_system": [0.4],
    },
    "chunked, swapped prefills": {
        "chunked_prefill": [True],
        "preemption_mode": ["swap", "swap", None],
        "num_samples": [1, 2, 3],
        "max_num_seqs": [3, 4, 8],
        "chunk": [4, 8, 16],
        "gpu_factor": [1.3, 1.8, 2.5, 3.5],
        "cpu_factor": [3, 10],
        "prompt_scale": [1, 1.5],
        "max_output": [10, 20, 40],
    },
    "no CPU blocks": {
        "preemption_mode": ["swap"],
        "cpu_factor": [0, 0.2],
        "gpu_factor": [1.5, 3],
    },
    "stuck": {"num_samples": [4], "max_num_seqs": [2, 3], "gpu_factor": [3, 8]},
    "long prompts": {"p_long": [0.1, 0.3], "limit_factor": [0.5, 1]},
    "identical prompts": {
        "enable_prefix_caching": [True],
        "p_same": [0.6],
        "num_samples": [1, 2, 3],
    },
    "cached, swapped": {
        "enable_prefix_caching": [True],
        "preemption_mode": ["swap"],
        "gpu_factor": [1.2, 1.6, 2.2, 3],
        "cpu_factor": [1, 1.5, 3],
        "p_same": [0.25],
        "p_system": [0.5],
    },
    # One-shot requests end in a prefill step, then a group needs more free blocks than
    # are left: victims that were accessed earlier are freed later.
    "eviction order": {
        "enable_prefix_caching": [True],
        "preemption_mode": [None, None, "swap"],
        "chunked_prefill": [False, False, False, True],
        "num_samples": [4],
        "max_num_seqs": [16, 32, 64],
        "block_size": [1, 2, 3, 4],
        "prompt_scale": [0.3, 0.6],
        "max_output": [10, 20, 40],
        "gpu_factor": [2, 3, 4, 5],
        "cpu_factor": [3, 10],
        "arrivals": ["steady", "waves"],
        "num_requests": [50],
        "p_several": [1],
        "p_even": [0, 0.5],
        "p_one_shot": [0.5],
        "p_system": [0.2],
    },
}
WEIGHTS = [4 if name == "eviction order" else 1 for name in PROFILES]


def generate(seed: int, attempt: int = 0) -> Scenario:
    """A scenario, always the same for the same arguments."""
    return _Writer(random.Random(f"v0-{seed}-{attempt}"), f"random_{seed:04d}").scenario()


class _Writer:
    """Draws one scenario."""

    def __init__(self, rng: random.Random, name: str) -> None:
        self.rng = rng
        self.name = name
        (profile,) = rng.choices(list(PROFILES), WEIGHTS)
        choices = CHOICES | PROFILES[profile]
        self.drawn = {key: rng.choice(values) for key, values in choices.items()}
        block_size = self.drawn["block_size"]
        scale = (12 + 10 * block_size) if block_size <= 8 else 150
        self.max_prompt = max(4, int(scale * self.drawn["prompt_scale"]))
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
            "policy": "v0",
            "config": self.config,
            "segments": list(self.segments),
            "requests": requests,
        }

    def _chance(self, name: str) -> bool:
        return bool(self.rng.random() < self.drawn[name])

    def _config(self) -> dict[str, Any]:
        drawn = self.drawn
        max_output, block_size = drawn["max_output"], drawn["block_size"]
        mean_tokens = self.max_prompt + max_output * drawn["num_samples"] / 2
        num_gpu_blocks = max(3, int(mean_tokens / block_size * drawn["gpu_factor"]))
        longest = 2 * self.max_prompt + max_output
        max_model_len = max(8, int(longest * drawn["limit_factor"]))
        budget = max_model_len * drawn["budget_factor"]
        if drawn["chunked_prefill"]:
            budget = drawn["chunk"]
        kept = (
            "block_size", "max_num_seqs", "enable_prefix_caching", "preemption_mode",
            "chunked_prefill",
        )  # fmt: skip
        return {key: drawn[key] for key in kept} | {
            "num_gpu_blocks": num_gpu_blocks,
            "num_cpu_blocks": int(num_gpu_blocks * drawn["cpu_factor"]),
            "max_num_batched_tokens": max(drawn["max_num_seqs"], int(budget)),
            "max_model_len": max_model_len,
            "watermark": 0.01,
        }

    def _gap(self) -> int:
        """Steps to the next arrival."""
        rng = self.rng
        pauses = {
            "at once": (0, 0, 0),
            "bursts": (0.15, 3, 30),
            "steady": (0.8, 1, 3),
            "waves": (0.1, 40, 120),
            "sparse": (1, 0, 20),
        }
        p_pause, low, high = pauses[self.drawn["arrivals"]]
        return rng.randint(low, high) if rng.random() < p_pause else 0

    def _request(
        self, request_id: int, step: int, earlier: list[dict[str, Any]]
    ) -> dict[str, Any]:
        is_one_shot = self._chance("p_one_shot")
        lengths = [1] if is_one_shot else self._lengths()
        for sample in range(len(lengths)):
            self._segment(f"o{request_id}.{sample}")
        return {
            "id": request_id,
            "step": step,
            "prompt": self._short_prompt() if is_one_shot else self._prompt(earlier),
            "output_tokens": lengths,
        }

    def _lengths(self) -> list[int]:
        """Output tokens of each sample."""
        rng, longest = self.rng, self.drawn["max_output"]
        most = self.drawn["num_samples"]
        n = rng.randint(2, most) if most > 1 and self._chance("p_several") else 1
        if self._chance("p_even"):
            return [rng.randint(1, longest)] * n
        lengths = [rng.randint(1, longest) for _ in range(n)]
        lengths = [1 if self._chance("p_one_token") else length for length in lengths]
        if n > 1 and self._chance("p_first_short"):
            lengths[0] = rng.randint(1, max(1, longest // 6))
        return lengths

    def _prompt(self, earlier: list[dict[str, Any]]) -> list[list[int]]:
        """Runs of segments: an earlier prompt, one continued, or a new one."""
        rng = self.rng
        if earlier and self._chance("p_same"):
            prompt = list(rng.choice(earlier)["prompt"])
        elif earlier and self._chance("p_continued"):
            prompt = self._continued(rng.choice(earlier))
        else:
            prompt = self._new_prompt()
        if self._chance("p_long"):
            limit = self.config["max_model_len"]
            prompt.append(self._user(rng.randint(limit // 2, limit + 20)))
        return prompt

    def _continued(self, request: dict[str, Any]) -> list[list[int]]:
        """The prompt and output of a request, or part of that, and a new turn."""
        rng, lengths = self.rng, request["output_tokens"]
        sample = rng.randrange(len(lengths))
        said = rng.choice([lengths[sample], rng.randint(1, lengths[sample])])
        prompt = [*request["prompt"], [self._segment(f"o{request['id']}.{sample}"), said]]
        if sum(length for _, length in prompt) > 3 * self.max_prompt:
            prompt = prompt[:1]
        return [*prompt, self._user(rng.randint(1, max(1, self.max_prompt // 3)))]

    def _new_prompt(self) -> list[list[int]]:
        block_size, longest = self.drawn["block_size"], self.max_prompt
        length = self.rng.randint(1, longest)
        if self._chance("p_whole_blocks"):
            length = max(1, length // block_size) * block_size
        prompt = [self._user(length)]
        if self._chance("p_system"):
            number = self.rng.randrange(3)
            shared = (block_size, 3 * block_size, longest // 2)[number]
            prompt.insert(0, [self._segment(f"system{number}"), shared])
        return prompt

    def _short_prompt(self) -> list[list[int]]:
        return [self._user(self.rng.randint(1, 4 * self.drawn["block_size"]))]

    def _user(self, length: int) -> list[int]:
        self.num_users += 1
        return [self._segment(f"u{self.num_users}"), length]

    def _segment(self, name: str) -> int:
        return self.segments.setdefault(name, len(self.segments))
