"""Load tests: calls against a real server, and the search for how many hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")
pytest.importorskip("psutil", reason="the extra `serve` is not installed")

from nemostream.audio import load_audio
from nemostream.cli.main import main
from nemostream.errors import BackendError
from nemostream.load_test.generate import Plan
from nemostream.load_test.report import plot, to_markdown
from nemostream.load_test.search import Level, LoadTest, find_largest
from nemostream.load_test.telephone import PACKET_BYTES, read_utterances
from tests.serve.conftest import EXAMPLES, running


def level(calls: int, p95: float, **faults: int) -> Level:
    none = {"refused": 0, "broken": 0, "lost": 0, "mismatches": 0}
    return Level(
        calls,
        10 * calls,
        **(none | faults),
        lag=(10.0, p95, p95),
        first_partial=(1.0, 2.0, 3.0),
        lateness=0.0,
    )


def test_recordings_become_telephone_packets() -> None:
    (utterance,) = read_utterances(EXAMPLES[:1])
    assert {len(packet) for packet in utterance.packets} == {PACKET_BYTES}
    assert len(set(utterance.packets)) > 50


@pytest.fixture
def short(tmp_path: Path) -> tuple[str, ...]:
    """Two recordings of a second and a half with speech: calls take as long as what they say."""
    paths = []
    for path in EXAMPLES[:2]:
        samples = load_audio(path)
        paths.append(tmp_path / f"{path.stem}.wav")
        soundfile.write(paths[-1], samples[8000:32_000], 16_000)
    return tuple(map(str, paths))


def test_calls_at_once_hear_what_one_hears(short: tuple[str, ...]) -> None:
    """Real sockets, a generator of its own, two recordings; five calls do not fit into three slots."""
    with running(slots=3) as server:
        plan = Plan(server.ws, short, calls=1, seconds=1.0, pause=0.1)
        test = LoadTest(plan)
        alone, three, five = test.alone(), test.level(3), test.level(5)
        assert alone.utterances == 2
        assert (three.refused, three.broken, three.lost, three.mismatches) == (0, 0, 0, 0)
        assert all(lag > 0 for lag in three.lag)
        assert five.refused == 2
        assert five.reasons == ("HTTP 503",)
        assert not five.holds(alone)
        test._texts[0] = "something else"  # as if a call had heard another caller's words
        assert test.level(3).mismatches > 0
        server.wait_until_idle()


def test_a_server_that_is_not_there() -> None:
    plan = Plan("ws://127.0.0.1:9", (str(EXAMPLES[0]),), calls=1, seconds=0.1, pause=0.0)
    with pytest.raises(BackendError, match=r"One call alone|generator"):
        LoadTest(plan).alone()


@given(capacity=st.integers(1, 400), most=st.integers(1, 400), first=st.integers(2, 16))
def test_the_search_finds_the_capacity(capacity: int, most: int, first: int) -> None:
    class Fake:
        def alone(self) -> Level:
            return level(1, 20.0)

        def level(self, calls: int) -> Level:
            return level(calls, 20.0 if calls <= capacity else 5000.0)

    levels, largest = find_largest(Fake(), most, lambda _: None, first)  # type: ignore[arg-type]
    reachable = min(capacity, most)
    assert largest <= max(1, reachable)
    assert largest * 1.15 + 1 >= reachable or largest == most
    assert len(levels) <= 16


def test_what_holds() -> None:
    alone = level(1, 50.0)
    assert level(9, 349.0).holds(alone)
    assert not level(9, 351.0).holds(alone)
    for fault in ("refused", "broken", "lost", "mismatches"):
        assert not replace(level(9, 50.0), **{fault: 1}).holds(alone)


def test_report(tmp_path: Path) -> None:
    levels = [level(1, 50.0), level(9, 500.0)]
    rows = to_markdown(levels).splitlines()
    assert rows[2].endswith("| yes |")
    assert rows[3].endswith("| no |")
    plot({"ours": levels}, tmp_path / "calls.png")
    assert (tmp_path / "calls.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.long
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "calls", str(EXAMPLES[0]), "--calls", "2", "--seconds", "2", "--pause", "0.2"]
    assert main([*arguments, "--json", str(tmp_path / "levels.json")]) == 0
    assert "calls hold." in capsys.readouterr().out
    (_, two) = json.loads((tmp_path / "levels.json").read_text())
    assert two["mismatches"] == 0
    assert two["megabytes"] > 20
