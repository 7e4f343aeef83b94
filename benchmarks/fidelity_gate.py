"""Whether a figure is within its limit, said in a line."""


def gate(what: str, value: float, limit: float, *, is_most: bool = False) -> bool:
    """Print whether a figure is within its limit."""
    is_met = value <= limit if is_most else value >= limit
    bound = "at most" if is_most else "at least"
    print(f"{'met   ' if is_met else 'FAILED'}  {what}: {value:.1%}, {bound} {limit:.0%}")
    return is_met
