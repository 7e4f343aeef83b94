"""What a real engine leaves behind: rows, how it ended, and what was measured."""

from dataclasses import dataclass

from results.measured import Measurement
from results.record import RequestRecord, StepRecord
from results.rows import Rows
from results.run_info import Outcome


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredRun:
    """A measured run, as it is saved, shown and compared.

    Attributes:
        requests: One row a request, by ``request_id``.
        steps: One row an iteration of an engine that was started here; one row between
            two samples of a server's metrics. In time order; empty where nobody looked.
        outcome: How it ended; what was measured before a failure is in the rows.
        wall_s: Seconds that the run itself took, start and warm-up left out.
        measurement: What is known besides, and which columns say nothing.
    """

    requests: Rows[RequestRecord]
    steps: Rows[StepRecord]
    outcome: Outcome
    wall_s: float
    measurement: Measurement
