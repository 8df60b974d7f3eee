"""Many streams in MLX: what one hears depends neither on the others nor on the thread that asks."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import nemostream
from nemostream.audio import load_audio
from nemostream.engine.session import Session, step_sessions
from tests.conftest import REPOSITORY

pytest.importorskip("mlx.core", exc_type=ImportError, reason="the extra mlx is not installed")
pytest.importorskip("onnx", reason="the extra export is not installed")

from nemostream.checkpoints import load_checkpoint
from nemostream.export.mlx import export_mlx
from nemostream.loading import embedded_checkpoint

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.flac"))
CALLS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model as `nemostream convert --to mlx` writes it."""
    path = tmp_path_factory.mktemp("mlx") / "tiny"
    export_mlx(load_checkpoint(embedded_checkpoint()), path, source="tiny")
    return path


@pytest.fixture(scope="module", params=["mlx", "onnx"])
def model(request: pytest.FixtureRequest, folder: Path) -> nemostream.Model:
    return nemostream.load(folder, backend="mlx", decoder=request.param)


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    """What PyTorch hears in each example."""
    reference = nemostream.load(backend="torch")
    return {path.name: [token.id for token in reference.transcribe(path).tokens] for path in EXAMPLES}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("decoder", ["mlx", "onnx"])
def test_both_decoders_give_the_tokens_of_the_reference(
    precision: str, decoder: str, folder: Path, expected: dict[str, list[int]]
) -> None:
    model = nemostream.load(folder, backend="mlx", precision=precision, decoder=decoder)
    assert model.backend == ("mlx" if decoder == "mlx" else "mlx-onnx")
    for path in EXAMPLES:
        assert [token.id for token in model.transcribe(path).tokens] == expected[path.name], path.name
        assert expected[path.name]


@pytest.mark.parametrize("size", [2, 3, 6])
def test_calls_join_and_leave(size: int, model: nemostream.Model, expected: dict[str, list[int]]) -> None:
    """As the server steps them: each call begins when another ends, and all that are there share a step."""
    sounds = [load_audio(path) for path in EXAMPLES]
    waiting = [index % len(EXAMPLES) for index in range(CALLS)]
    running: dict[Session, tuple[int, int]] = {}  # session -> which recording, next sample
    heard: dict[Session, list[int]] = {}
    finished: list[tuple[int, list[int]]] = []
    while waiting or running:
        if waiting and len(running) < size:  # one joins at a time, so all are at different places
            session = model.stream()
            running[session], heard[session] = (waiting.pop(), 0), []
        for session, (which, begin) in list(running.items()):
            end = begin + 4000 + 400 * which
            if begin < len(sounds[which]):
                session.push(sounds[which][begin:end])
                if end >= len(sounds[which]):
                    session.end()
            running[session] = which, end
        ready = [
            session for session, (which, end) in running.items() if session.ready or end >= len(sounds[which])
        ]
        for session, events in zip(ready, step_sessions(ready), strict=True):
            heard[session] += [token.id for event in events for token in event.tokens]
            if events and events[-1].final:
                finished.append((running.pop(session)[0], heard.pop(session)))
    assert len(finished) == CALLS
    for which, tokens in finished:
        assert tokens == expected[EXAMPLES[which].name]


def test_each_call_may_come_from_another_thread(
    model: nemostream.Model, expected: dict[str, list[int]]
) -> None:
    sound, tokens = load_audio(EXAMPLES[0]), []
    session = model.stream()
    for begin in range(0, len(sound), 8000):
        part = sound[begin : begin + 8000]
        _elsewhere(lambda part=part: tokens.extend(session.feed(part)))
    _elsewhere(lambda: tokens.extend(session.finish()))
    assert [token.id for event in tokens for token in event.tokens] == expected[EXAMPLES[0].name]


def test_a_beam_finds_what_it_finds_in_pytorch(model: nemostream.Model) -> None:
    """It takes the predictor on from states that it holds itself."""
    options = {"beam": 3, "boost": ["dark roast"]}
    reference = nemostream.load(backend="torch")
    ours, theirs = (each.transcribe(EXAMPLES[2], **options) for each in (model, reference))
    assert [token.id for token in ours.tokens] == [token.id for token in theirs.tokens]
    assert ours.tokens


def test_two_models_at_the_same_time(folder: Path, expected: dict[str, list[int]]) -> None:
    """Each is used by a thread of its own; both share MLX's."""
    models = [nemostream.load(folder, backend="mlx", decoder=decoder) for decoder in ("mlx", "onnx")]
    heard: dict[int, list[list[int]]] = {0: [], 1: []}

    def transcribe(index: int) -> None:
        for path in EXAMPLES:
            heard[index].append([token.id for token in models[index].transcribe(path).tokens])

    threads = [threading.Thread(target=transcribe, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard[0] == heard[1] == [expected[path.name] for path in EXAMPLES]


@pytest.mark.parametrize("decoder", ["mlx", "onnx"])
def test_server(decoder: str, folder: Path) -> None:
    pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    from tests.serve.conftest import running
    from tests.serve.test_transcriptions import post

    reference = nemostream.load(backend="torch")
    with running(model=str(folder), backend="mlx", decoder=decoder, slots=4) as server:
        answers: dict[str, str] = {}
        threads = [
            threading.Thread(
                target=lambda path=path: answers.update(
                    {path.name: post(server, path.read_bytes()).json()["text"]}
                )
            )
            for path in EXAMPLES
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == {path.name: reference.transcribe(path).text.strip() for path in EXAMPLES}


def test_a_program_ends_well_wherever_the_model_is_dropped() -> None:
    """MLX aborts a program whose MLX thread ends after Python; that was about one run in two."""
    program = (
        "import sys, nemostream\n"
        "def run():\n"
        "    model = nemostream.load(backend='mlx')\n"
        "    model.transcribe(sys.argv[1])\n"
        "    return model\n"
        "kept = run() if sys.argv[2] == 'kept' else run() and None\n"
    )
    for when in ("kept", "dropped", "kept", "dropped"):
        ended = subprocess.run(
            [sys.executable, "-c", program, str(EXAMPLES[0]), when], capture_output=True, check=False
        )
        assert ended.returncode == 0, ended.stderr


def test_arrays_are_freed_when_a_runtime_is_dropped(folder: Path) -> None:
    import mlx.core as mx

    def active() -> int:
        gc.collect()
        time.sleep(0.2)  # MLX's thread frees them
        return mx.get_active_memory()

    nemostream.load(folder, backend="mlx").transcribe(EXAMPLES[0])
    before = active()
    for _ in range(3):
        nemostream.load(folder, backend="mlx").transcribe(EXAMPLES[0])
    assert active() <= before + 1_000_000  # the weights alone are 17 MB


def _elsewhere(function: Callable[[], None]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
