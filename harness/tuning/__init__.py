"""Which settings serve a trace best: objective, space, search, and what speaks for it."""
