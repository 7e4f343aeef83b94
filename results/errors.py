"""Errors raised when results are written, read or compared."""


class ResultsError(Exception):
    """Base class of every error this package raises on purpose."""


class RunFolderError(ResultsError):
    """The folder asked for cannot take a run, or holds none."""
