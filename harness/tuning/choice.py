"""What may be chosen of a search by name; reading a command line needs no more of it."""

from enum import StrEnum


class Routing(StrEnum):
    """Which replica a conversation goes to.

    ``ROUND_ROBIN``: the next one. ``PREFIX``: the one for what its first prompt begins
    with, so that prompts that begin alike meet; of what more begin with than a replica's
    share, as a system prompt that all have, what comes after it decides.
    """

    ROUND_ROBIN = "round-robin"
    PREFIX = "prefix"


class ObjectiveName(StrEnum):
    """What is wanted most."""

    GOODPUT = "goodput"
    THROUGHPUT = "throughput"
    TTFT = "ttft"
    TPOT = "tpot"
