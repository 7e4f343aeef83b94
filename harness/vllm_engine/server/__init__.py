"""A server that runs already: replay on it, or only look at its metrics."""
