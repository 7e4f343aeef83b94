"""Tests for :mod:`profiles.errors`."""

from profiles.errors import CapacityError, ProfileError, UnknownNameError


def test_unknown_name_offers_the_nearest() -> None:
    """A name with one letter wrong is answered with the right one."""
    error = UnknownNameError("GPU", "h10O-80gb", ["A100-80GB", "H100-80GB", "H200"])

    assert error.nearest[0] == "H100-80GB"
    assert "did you mean H100-80GB" in str(error)


def test_unknown_name_always_offers_something() -> None:
    """Even a name like no other is answered with one that exists."""
    assert UnknownNameError("GPU", "?", ["H200"]).nearest == ("H200",)


def test_capacity_error_says_three_things() -> None:
    """The message holds what is, what was needed and what to do, in that order."""
    error = CapacityError("1 GiB left", "2 GiB needed", "take a bigger GPU")

    assert isinstance(error, ProfileError)
    assert str(error) == "1 GiB left; 2 GiB needed; take a bigger GPU"
