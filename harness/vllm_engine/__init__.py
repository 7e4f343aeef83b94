"""Runs of a real engine: vLLM started here, a server that runs, and others' results."""
