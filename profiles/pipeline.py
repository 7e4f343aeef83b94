"""Which layers each stage of a pipeline holds."""

from profiles.errors import CapacityError
from profiles.model import ModelProfile


def stages(model: ModelProfile, pipeline_parallel_size: int) -> tuple[range, ...]:
    """The layers of each stage, first stage first.

    What is over goes to the last stages but one: each of them takes a layer more.

    Raises:
        CapacityError: There are more stages than layers.

    Source: vLLM 0.32.0 ``distributed/utils.py`` ``get_pp_indices``.
    """
    num_layers, size = model.num_layers, pipeline_parallel_size
    if not 1 <= size <= num_layers:
        raise CapacityError(
            f"pipeline_parallel_size is {size}",
            f"each stage holds at least one of the {num_layers} layers of {model.name}",
            f"give 1 to {num_layers}",
        )
    counts = [num_layers // size] * size
    for place in range(2, num_layers % size + 2):
        counts[-place] += 1
    ends = [sum(counts[: stage + 1]) for stage in range(size)]
    return tuple(range(end - count, end) for end, count in zip(ends, counts, strict=True))
