"""Results of other clients as measured runs: vllm bench serve, GuideLLM, AIPerf."""
