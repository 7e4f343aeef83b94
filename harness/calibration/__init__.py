"""From measurements to step times that agree with them."""
