"""Which coefficients measurements tell, and what they say.

A maximum a posteriori fit: every coefficient begins as the profile has it, with a spread
that is likely for it, and moves as far as the figures pull it. So a few figures move few
coefficients, and those that no figure depends on stay. Figures far from all others count
little (soft L1).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.calibration.coefficient import COEFFICIENTS, Moves
from harness.calibration.observation import Observation
from harness.errors import UsageError

Array = npt.NDArray[np.float64]

SPREAD = {"ttft": 0.08, "tpot": 0.05, "step": 0.05}
"""Likely error, as a share, of each kind of figure under a model that is right.

Source: as of ``COEFFICIENTS``.
"""

FAR = 2.0
"""Spreads from where a figure's pull grows no more."""

MOST_KEPT_SPREAD = 0.8
"""A coefficient is told by the figures if they leave it less of its likely spread."""

NUM_PARTS = 10
"""Observations are left out one by one; more than these, a tenth of them side by side."""

NUM_CORRECTIONS = 2
"""Steps from the fit to all figures to one without some, with slopes of the former."""

STEP = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """A figure beside what was predicted of it.

    Attributes:
        name: Of the observation.
        uncalibrated: Relative error of the profile as it was.
        fitted: The same after the fit.
        left_out: The same after a fit without the observation, or without the part of
            the observations that it is in; None where there is no other.
    """

    name: str
    figure: str
    measured_s: float
    uncalibrated: float
    fitted: float
    left_out: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What measurements made of the coefficients.

    Attributes:
        moves: Of the coefficients that they tell.
        spreads: Standard deviation of each of these after the fit.
        untold: Coefficients that they do not tell, by name, and the share of the likely
            spread that they leave.
        residuals: One a figure.
    """

    moves: Moves
    spreads: Moves
    untold: Moves
    residuals: tuple[Residual, ...]

    def median_error(self, figure: str, kind: str) -> float | None:
        """Median absolute error of a figure, of a kind such as ``left_out``; or None."""
        errors = [
            abs(getattr(residual, kind))
            for residual in self.residuals
            if residual.figure == figure and getattr(residual, kind) is not None
        ]
        return float(np.median(errors)) if errors else None


def fit(
    observations: Sequence[Observation],
    names: Sequence[str] | None = None,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> Fitted:
    """Fit the coefficients that the observations tell.

    Args:
        observations: At least one.
        names: Coefficients to fit; None for all that are told.
        on_progress: Called with the number of predictions made so far.

    Raises:
        UsageError: They tell none, or not one that was named, or cannot be replayed.
    """
    problem = _Problem(observations, on_progress)
    wanted = list(COEFFICIENTS if names is None else dict.fromkeys(names))
    told, untold = problem.told(wanted)
    if not told or (names is not None and untold):
        raise UsageError(_not_told(untold, is_all=names is None))
    solution = problem.solve(told)
    return Fitted(
        moves=dict(zip(told, solution.moves.tolist(), strict=True)),
        spreads=dict(zip(told, solution.spreads.tolist(), strict=True)),
        untold=untold,
        residuals=problem.residuals(solution),
    )


def _not_told(untold: Moves, *, is_all: bool) -> str:
    names = ", ".join(
        f"{name} ({COEFFICIENTS[name].says}: {100 * share:.0f} % of its likely spread is"
        f" left; {COEFFICIENTS[name].told_by} would tell it)"
        for name, share in untold.items()
    )
    if is_all:
        return f"the measurements tell no coefficient: {names}; add such rows"
    remedy = "leave it" if len(untold) == 1 else "leave them"
    return (
        f"the measurements do not tell {names}; add such rows, or {remedy} out of --fit"
    )


@dataclass(frozen=True, slots=True)
class _Solution:
    """Moves, and at their place the log errors with their slopes."""

    names: tuple[str, ...]
    moves: Array
    spreads: Array
    errors: Array
    slopes: Array


class _Problem:
    """Observations as figures, and their predictions as logarithms."""

    def __init__(
        self,
        observations: Sequence[Observation],
        on_progress: Callable[[int], None] | None,
    ) -> None:
        self._observations = observations
        self._on_progress = on_progress
        self._num_predictions = 0
        self._places = [
            (place, figure)
            for place, observation in enumerate(observations)
            for figure in observation.figures
        ]
        measured = [s for observation in observations for s in observation.measured_s]
        self._measured_s = np.array(measured, dtype=float)
        self._spread = np.array([SPREAD[figure] for _, figure in self._places])
        self._known: dict[tuple[tuple[str, float], ...], Array] = {}
        self._uncalibrated = self._errors({})
        for (place, figure), error in zip(self._places, self._uncalibrated, strict=True):
            if not np.isfinite(error):
                raise UsageError(
                    f"{observations[place].name} cannot be replayed: no request of it has"
                    f" a {figure}; check its lengths, and the flags of the engine"
                )

    def told(self, names: Sequence[str]) -> tuple[list[str], dict[str, float]]:
        """Those that the figures tell, and what is left of the spread of the others.

        The worst told one is set aside, one after another: what is left may then tell
        more of its neighbours.
        """
        slopes = dict(zip(names, self._slopes(names, {}).T, strict=True))
        all_alike = np.ones(len(self._places))
        told, untold = list(names), dict[str, float]()
        while told:
            columns = np.array([slopes[name] for name in told]).T
            kept = self._spreads(columns, all_alike, told) / _likely(told)
            worst = int(np.argmax(kept))
            if kept[worst] < MOST_KEPT_SPREAD:
                break
            untold[told.pop(worst)] = float(kept[worst])
        return told, untold

    def solve(self, names: Sequence[str]) -> _Solution:
        """The most likely moves."""
        from scipy.optimize import least_squares  # type: ignore[import-untyped]

        likely = _likely(names)

        def weighted(shifted: Array) -> Array:
            moves = shifted - 1
            errors = self._errors(dict(zip(names, moves.tolist(), strict=True)))
            return np.concatenate((errors / self._spread, moves / likely))

        # Moves are around 0, where a relative step would vanish.
        best = least_squares(
            weighted,
            np.ones(len(names)),
            loss=self._loss,
            f_scale=FAR,
            diff_step=STEP,
            x_scale=likely,
            xtol=1e-3,
            ftol=1e-3,
            max_nfev=12,
        )
        moves = best.x - 1
        here = dict(zip(names, moves.tolist(), strict=True))
        errors, slopes = self._errors(here), self._slopes(names, here)
        return _Solution(
            names=tuple(names),
            moves=moves,
            spreads=self._spreads(slopes, self._pulls(errors), names),
            errors=errors,
            slopes=slopes,
        )

    def _loss(self, squares: Array) -> Array:
        """Soft L1 of the figures; the likely moves count as they are."""
        root = np.sqrt(1 + squares)
        loss = np.array([2 * (root - 1), 1 / root, -0.5 / root**3])
        num_figures = len(self._places)
        loss[0, num_figures:] = squares[num_figures:]
        loss[1, num_figures:] = 1
        loss[2, num_figures:] = 0
        return loss

    def residuals(self, solution: _Solution) -> tuple[Residual, ...]:
        """Each figure's errors: before, after, and when it is not there."""
        left_out = self._left_out(solution)
        return tuple(
            Residual(
                name=self._observations[place].name,
                figure=figure,
                measured_s=float(self._measured_s[row]),
                uncalibrated=float(np.expm1(self._uncalibrated[row])),
                fitted=float(np.expm1(solution.errors[row])),
                left_out=None if left_out is None else float(np.expm1(left_out[row])),
            )
            for row, (place, figure) in enumerate(self._places)
        )

    def _left_out(self, solution: _Solution) -> Array | None:
        """Log errors of each observation after a fit without it."""
        count = len(self._observations)
        if count < 2:
            return None
        num_parts = min(count, NUM_PARTS)
        of_row = np.array([place * num_parts // count for place, _ in self._places])
        found = solution.errors.copy()
        for part in range(num_parts):
            kept = of_row != part
            found[~kept] = self._errors_without(kept, solution)[~kept]
        return found

    def _errors_without(self, kept: Array, solution: _Solution) -> Array:
        """Log errors of all figures after a fit to some, from the fit to all of them."""
        precision = np.diag(1 / _likely(solution.names) ** 2)
        moves, errors = solution.moves, solution.errors
        for _ in range(NUM_CORRECTIONS):
            weights = np.sqrt(self._pulls(errors)[kept]) / self._spread[kept]
            slopes = solution.slopes[kept] * weights[:, None]
            pull = slopes.T @ (errors[kept] * weights) + precision @ moves
            moves = moves - np.linalg.solve(slopes.T @ slopes + precision, pull)
            errors = self._errors(dict(zip(solution.names, moves.tolist(), strict=True)))
        return errors

    def _pulls(self, errors: Array) -> Array:
        """What each figure counts, from 1 down to 0 for those far from the others."""
        return np.asarray(1 / np.sqrt(1 + (errors / self._spread / FAR) ** 2))

    def _spreads(self, slopes: Array, pulls: Array, names: Sequence[str]) -> Array:
        weighted = slopes * (np.sqrt(pulls) / self._spread)[:, None]
        information = weighted.T @ weighted + np.diag(1 / _likely(names) ** 2)
        return np.asarray(np.sqrt(np.diag(np.linalg.inv(information))))

    def _slopes(self, names: Sequence[str], moves: Moves) -> Array:
        """Change of the log errors for a move of each coefficient."""
        here = self._errors(moves)
        columns = [
            (self._errors({**moves, name: moves.get(name, 0.0) + STEP}) - here) / STEP
            for name in names
        ]
        return np.array(columns).T

    def _errors(self, moves: Moves) -> Array:
        """Log errors of all figures; those of the same moves are kept."""
        key = tuple(sorted((name, move) for name, move in moves.items() if move))
        if key not in self._known:
            predicted: list[float] = []
            for observation in self._observations:
                predicted += observation.predicted_s(moves)
                self._num_predictions += 1
                if self._on_progress is not None:
                    self._on_progress(self._num_predictions)
            with np.errstate(divide="ignore", invalid="ignore"):
                self._known[key] = np.log(np.array(predicted) / self._measured_s)
        return self._known[key]


def _likely(names: Sequence[str]) -> Array:
    return np.array([COEFFICIENTS[name].likely for name in names])
