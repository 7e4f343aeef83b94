"""How requests leave the v1 scheduler, one sample after the other."""

from allocators.kv_cache_manager import KVCacheManager
from harness.request import Request
from harness.schedulers.batch import Dismissal, Dismissed, Finished
from harness.schedulers.call_v1 import Call
from harness.schedulers.engine_request import EngineRequest, Siblings
from harness.schedulers.offloading import Offloading


class Departures:
    """Lets requests go when the last of their samples has left.

    Args:
        manager: Takes their blocks back.
        offloading: Is offered the rest of their prompts, if there is a tier.

    Attributes:
        present: Samples of each request that has not left, by its id.
        has_news: Somebody has left since the latest call began.
        dismissed_late: Requests that left as dismissed; the next call is to say so.
    """

    def __init__(self, manager: KVCacheManager, offloading: Offloading | None) -> None:
        self.present: dict[int, list[EngineRequest]] = {}
        self.has_news = False
        self._manager = manager
        self._offloading = offloading
        self.dismissed_late: list[Siblings] = []

    def expect(self, samples: list[EngineRequest]) -> None:
        """Take note of a request that has arrived, with all its samples."""
        self.present[samples[0].request.request_id] = samples

    def begin_call(self, call: Call) -> None:
        """Report who was dismissed when a last sample finished between two calls."""
        call.dismissed += tuple(map(_dismissed, self.dismissed_late))
        self.dismissed_late.clear()
        self.has_news = False

    def finish(self, request: EngineRequest) -> Finished | None:
        """Let a sample go that has all its tokens; the request, if it was the last."""
        siblings = request.siblings
        if not self._leave(request):
            return None
        if siblings.reason is None:
            return Finished(siblings.request, tuple(siblings.lengths))
        self.dismissed_late.append(siblings)
        return None

    def dismiss(self, call: Call, request: EngineRequest, reason: Dismissal) -> None:
        """Let a waiting sample go that can never run."""
        siblings = request.siblings
        siblings.reason = siblings.reason or reason
        if self._leave(request):
            call.dismissed += (_dismissed(siblings),)

    def _leave(self, request: EngineRequest) -> bool:
        """Take a sample's blocks for good; whether it was the last of its request."""
        siblings = request.siblings
        prompt = siblings.request.num_prompt_tokens
        siblings.lengths[request.sample] = request.num_tokens - prompt
        request.has_left = True
        if self._offloading is not None:
            self._offloading.keep_table(request)
            self._offloading.end(request)
        self._manager.finish(request.blocks)
        self.has_news = True
        siblings.num_left -= 1
        if not siblings.num_left:
            del self.present[siblings.request.request_id]
        return not siblings.num_left


def _dismissed(siblings: Siblings) -> Dismissed:
    assert siblings.reason is not None, "one of its samples was dismissed"
    request: Request = siblings.request
    return Dismissed(
        request,
        siblings.reason,
        num_tokens=request.num_prompt_tokens + max(siblings.lengths),
        num_output_tokens=sum(siblings.lengths),
    )
