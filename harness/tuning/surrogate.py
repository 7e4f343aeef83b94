"""How good settings are likely to be that nobody tried: a Gaussian process.

Its kernel is a sum of one term for each knob, for what it does by itself, and a product
over all knobs, for what they do together. Losses enter as ranks: those of the settings
that miss a limit, or end an engine, are larger by orders of magnitude.

Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), 2.3 and
5.4; Duvenaud et al., Additive Gaussian Processes (NIPS 2011); Jones et al., Efficient
Global Optimization (1998), for the expected improvement.
"""

from dataclasses import dataclass

import numpy as np

from harness.run_columns import IntArray
from results.columns import FloatArray

LENGTH, WEIGHT, TOGETHER, NOISE = 0.6, 0.2, 0.4, 0.0025
"""What each knob's length scale and weight, the weight of the product, and the noise are
likely to be, before anything is known; lengths are shares of a knob's range."""

SPREAD = np.array([0.7, 1.4, 1.4, 2.0])
"""Standard deviations of their logarithms."""

STEPS = 30
"""Of the fit: what more would bring is not worth the wait."""

LEAST_NOISE = 1e-6

MOST_POINTS = 96
"""That a model is made of: half of them the best, the others from all the rest."""


@dataclass(frozen=True, slots=True, eq=False)
class Surrogate:
    """What is expected of settings, from those that were tried.

    Attributes:
        points: Each setting tried, its knobs between 0 and 1, ``(num, num_knobs)``.
        values: Normal scores of their losses, ``(num,)``.
        log: Logarithms of lengths, weights, the product's weight and the noise,
            ``(2 * num_knobs + 2,)``.
    """

    points: FloatArray
    values: FloatArray
    log: FloatArray

    @classmethod
    def fitted(cls, points: FloatArray, losses: FloatArray) -> "Surrogate":
        """The most likely one, after what was likely before."""
        from scipy.optimize import minimize  # type: ignore[import-untyped]
        from scipy.stats import norm, rankdata  # type: ignore[import-untyped]

        values = norm.ppf((rankdata(losses) - 0.5) / len(losses))
        num_knobs = points.shape[1]
        counts = (num_knobs, num_knobs, 1, 1)
        prior = np.repeat(np.log([LENGTH, WEIGHT, TOGETHER, NOISE]), counts)
        spread = np.repeat(SPREAD, counts)

        def unlikelihood(log: FloatArray) -> tuple[float, FloatArray]:
            value, slope = cls(points, values, log).unlikelihood()
            off = (log - prior) / spread
            return value + float(off @ off) / 2, slope + off / spread

        found = minimize(
            unlikelihood, prior, jac=True, method="L-BFGS-B", options={"maxiter": STEPS}
        )
        return cls(points, values, found.x)

    def unlikelihood(self) -> tuple[float, FloatArray]:
        """Minus the logarithm of how likely the values are, less a constant; its slope.

        Source: Rasmussen and Williams (2006), equations 5.8 and 5.9.
        """
        alone, together, distance = self._terms(self.points, self.points)
        covariance = self._covariance()
        inverse = np.linalg.inv(covariance)
        solved = inverse @ self.values
        value = self.values @ solved / 2 + np.linalg.slogdet(covariance)[1] / 2
        outer = (inverse - np.outer(solved, solved)) / 2
        by_length = np.einsum(
            "ij,ijk->k", outer, (alone + together[..., None]) * distance
        )
        by_weight = np.einsum("ij,ijk->k", outer, alone)
        by_noise = np.exp(self.log[-1]) * np.trace(outer)
        slope = np.concatenate(
            (by_length, by_weight, [(outer * together).sum(), by_noise])
        )
        return float(value), slope

    def improvement(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """How far below the least value each point is expected to be, and its own.

        Args:
            points: ``(num_points, num_knobs)``.

        Returns:
            Expected improvement, where it is none counts 0, and expected value,
            ``(num_points,)`` each.
        """
        from scipy.special import ndtr  # type: ignore[import-untyped]

        to_tried = self._kernel(points, self.points)
        solved = np.linalg.solve(self._covariance(), to_tried.T)
        mean: FloatArray = self.values @ solved
        num_knobs = self.points.shape[1]
        own = np.exp(self.log[num_knobs:-1]).sum()  # each term's, at no distance
        variance = own - np.einsum("ij,ji->i", to_tried, solved)
        deviation = np.sqrt(np.maximum(variance, 1e-10))
        below = (self.values.min() - mean) / deviation
        density = np.exp(-(below**2) / 2) / np.sqrt(2 * np.pi)
        gain: FloatArray = deviation * (below * ndtr(below) + density)
        return gain, mean

    def believing(self, point: FloatArray, value: float) -> "Surrogate":
        """It with a point more, taken to have the value that is expected."""
        points, values = np.vstack((self.points, point)), np.append(self.values, value)
        return Surrogate(points, values, self.log)

    def _covariance(self) -> FloatArray:
        noise = np.exp(self.log[-1]) + LEAST_NOISE
        covariance: FloatArray = self._kernel(self.points, self.points)
        covariance[np.diag_indices(len(self.points))] += noise
        return covariance

    def _kernel(self, first: FloatArray, second: FloatArray) -> FloatArray:
        alone, together, _ = self._terms(first, second)
        kernel: FloatArray = alone.sum(axis=-1) + together
        return kernel

    def _terms(
        self, first: FloatArray, second: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """What each knob adds, what all do together, and squared distances by knob."""
        num_knobs = self.points.shape[1]
        length, weight = np.exp(self.log[:num_knobs]), np.exp(self.log[num_knobs:-2])
        distance: FloatArray = ((first[:, None, :] - second[None, :, :]) / length) ** 2
        together: FloatArray = np.exp(self.log[-2] - distance.sum(axis=-1) / 2)
        alone: FloatArray = weight * np.exp(-distance / 2)
        return alone, together, distance


def most_promising(
    tried: FloatArray, losses: FloatArray, candidates: FloatArray, num: int
) -> list[int]:
    """Candidates that may improve most on what was tried, each given those before it.

    Args:
        tried: Settings, ``(num_tried, num_knobs)``.
        losses: What they came to, ``(num_tried,)``.
        candidates: Settings that were not tried, ``(num_candidates, num_knobs)``.
        num: How many are wanted.

    Returns:
        Places among the candidates, at most ``num``.
    """
    known = _representative(losses)
    surrogate = Surrogate.fitted(tried[known], losses[known])
    chosen: list[int] = []
    while len(chosen) < min(num, len(candidates)):
        gain, value = surrogate.improvement(candidates)
        gain[chosen] = -1.0
        best = int(gain.argmax())
        chosen.append(best)
        surrogate = surrogate.believing(candidates[best], float(value[best]))
    return chosen


def _representative(losses: FloatArray) -> IntArray:
    """Places of the best, and of some of each kind of the others."""
    order: IntArray = np.argsort(losses, kind="stable")
    if len(order) <= MOST_POINTS:
        return order
    num_best = MOST_POINTS // 2
    num_others = MOST_POINTS - num_best
    others = np.linspace(num_best, len(order) - 1, num_others).round().astype(np.int64)
    return np.concatenate((order[:num_best], order[others]))
