"""An hour of calls: memory stays, and the last transcript is that of the first."""

from __future__ import annotations

import threading

import psutil
import pytest
import soxr

from nemostream.audio import load_audio
from tests.serve.conftest import EXAMPLES, mulaw, running
from tests.serve.test_listen import finals, say

pytestmark = pytest.mark.long
QUERY = "encoding=mulaw&sample_rate=8000&endpointing=false"
CALLERS, HOUR = 8, 3600.0
ALLOWED_MB = 12  # allocators keep some; a leak of one chunk's state a call would be 40 MB and more


def test_an_hour_of_calls_at_flat_memory(expect) -> None:
    recordings = [mulaw(soxr.resample(load_audio(path), 16_000, 8000)) for path in EXAMPLES]
    expected = [expect(code, encoding="mulaw", sample_rate=8000) for code in recordings]
    turns = round(HOUR * len(recordings) / sum(len(code) / 8000 for code in recordings) / CALLERS)
    wrong: list[tuple[int, int]] = []
    memory: list[float] = []

    def caller(number: int) -> None:
        for turn in range(turns):
            which = (number + turn) % len(recordings)
            if finals(say(server, recordings[which], 4000, QUERY)) != expected[which]:
                wrong.append((number, turn))
            if number == 0:
                memory.append(psutil.Process().memory_info().rss / 1e6)

    with running(connections_per_minute=0) as server:
        callers = [threading.Thread(target=caller, args=(number,)) for number in range(CALLERS)]
        for each in callers:
            each.start()
        for each in callers:
            each.join()
        server.wait_until_idle()
    assert wrong == []
    assert len(memory) == turns
    first, last = memory[turns // 4], memory[-1]
    assert last - first < ALLOWED_MB, (first, last)
