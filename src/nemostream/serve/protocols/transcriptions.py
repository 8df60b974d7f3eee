"""``POST /v1/audio/transcriptions`` and ``GET /v1/models``, as OpenAI has them.

A file is one more call of the scheduler, which takes several chunks of it in a step when live calls leave
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from nemostream.audio import AudioFile, Samples
from nemostream.audio.channels import select_channels
from nemostream.errors import NemostreamError
from nemostream.results import Transcript
from nemostream.serve.access import Denied
from nemostream.serve.call import Call, CallOptions, News, Result
from nemostream.serve.conversation import Problem, flag, with_latency
from nemostream.serve.scheduler import Refused
from nemostream.serve.server import Server
from nemostream.text.segments import segments_of
from nemostream.text.writers import WRITERS, Recognition

log = logging.getLogger("nemostream.serve")
T = TypeVar("T")

FORMATS = ("json", "verbose_json", "text", "srt", "vtt")
_BLOCK_SECONDS = 2.0
_CHUNKS = 4  # of a file in one step
_FORM_BYTES = 1 << 20  # of a form besides its file


async def models(request: Request) -> Response:
    """``GET /v1/models`` and ``/v1/models/ID``: the one model, with its languages and latencies."""
    server: Server = request.app.state.server
    try:
        server.access.check(request)
    except Denied as error:
        return problem(str(error), error.status)
    model = server.describe()
    wanted = request.path_params.get("id")
    if wanted is None:
        return JSONResponse({"object": "list", "data": [model]})
    if wanted != model["id"]:
        return problem(f"There is no model {wanted!r} here; the one model is {model['id']!r}.", 404)
    return JSONResponse(model)


async def transcriptions(request: Request) -> Response:
    """``POST /v1/audio/transcriptions``: a file as a form's ``file``."""
    server: Server = request.app.state.server
    limit = server.config.max_upload_mb * 1_000_000
    try:
        server.access.check(request)
        if int(request.headers.get("content-length") or 0) > limit:
            return problem(f"The file is larger than {server.config.max_upload_mb} MB, the limit here.", 413)
        server.scheduler.check_room()  # before a long upload for nothing
        limited = _limited(request, limit + _FORM_BYTES, server.config.idle_seconds)
        form = await limited.form(max_files=1, max_part_size=_FORM_BYTES)
        try:
            return await _transcribe(server, form, request)
        except BaseException:
            await form.close()
            raise
    except Denied as error:
        return problem(str(error), error.status)
    except Refused as error:
        return problem(str(error), 503)
    except NemostreamError as error:
        return problem(str(error), 400)
    except HTTPException as error:
        return problem(error.detail, error.status_code)
    except ClientDisconnect:
        return Response(status_code=499)  # nobody reads it


def _limited(request: Request, limit: int, seconds: float) -> Request:
    """The request, with an end to its body whether it says its length or not, and to every wait for it."""
    taken = 0

    async def receive() -> Message:
        nonlocal taken
        try:
            message = await asyncio.wait_for(request.receive(), seconds)
        except TimeoutError:
            raise HTTPException(408, f"Nothing came for {seconds:.0f} s.") from None
        taken += len(message.get("body", b""))
        if taken > limit:
            raise HTTPException(413, "The file is larger than the limit here.")
        return message

    return Request(request.scope, receive)


def problem(message: str, status: int) -> JSONResponse:
    """An error as OpenAI's clients read it."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    headers = {"Retry-After": "5"} if status in (429, 503) else None
    body = {"error": {"message": message, "type": kind, "param": None, "code": None}}
    return JSONResponse(body, status, headers=headers)


async def _transcribe(server: Server, form: FormData, request: Request) -> Response:
    upload = form.get("file")
    if not isinstance(upload, UploadFile):
        return problem("The form has no file; send the recording as the field `file`.", 400)
    if upload.size is not None and upload.size > server.config.max_upload_mb * 1_000_000:
        return problem(f"The file is larger than {server.config.max_upload_mb} MB, the limit here.", 413)
    fields = {name: value for name, value in form.items() if isinstance(value, str)}
    wanted = fields.get("response_format", "json")
    if wanted not in FORMATS:
        raise Problem(f"response_format is {wanted!r}; one of {', '.join(FORMATS)} was expected.")
    streamed = flag(fields.get("stream", "false"), "stream")
    if streamed and wanted != "json":
        raise Problem(f"response_format is {wanted!r}; stream=true gives json only.")
    times = _granularities(form, wanted)
    options = with_latency(server.default_options(), fields)
    options = replace(options, encoding="f32le", chunks=_CHUNKS)
    name = upload.filename or "the file"
    file = await asyncio.to_thread(AudioFile, upload.file, name)
    job = _Job(server, options, file, form)
    if streamed:
        return _EventStream(job)
    async with job:
        last = await _unless_gone(request, job.last())
    return await asyncio.to_thread(_answer, wanted, times, server, last, name, job.seconds)


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What the work comes to; a client that leaves, whose body has been read, ends it.

    Raises:
        ClientDisconnect: if it left.
    """
    working, leaving = asyncio.create_task(work), asyncio.create_task(_left(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _granularities(form: FormData, wanted: str) -> set[str]:
    """Whether words, segments or both are to have times."""
    given = {str(value) for value in form.getlist("timestamp_granularities[]")}
    if not given <= {"word", "segment"}:
        raise Problem(
            f"timestamp_granularities is {', '.join(sorted(given))}; word, segment or both was expected."
        )
    if given and wanted != "verbose_json":
        raise Problem("timestamp_granularities go with response_format=verbose_json only.")
    return given or {"word", "segment"}


class _Job:
    """One file on its way through a call; an async context manager that ends it whatever happens."""

    def __init__(self, server: Server, options: CallOptions, file: AudioFile, form: FormData) -> None:
        options = replace(options, sample_rate=file.sample_rate)
        self._file, self._form, self._server = file, form, server
        self._news: asyncio.Queue[News | BaseException] = asyncio.Queue()
        (self._call,) = server.open(options, self._on_news)
        server.metrics.connections.labels("transcriptions").inc()
        self.seconds = 0.0
        self._reading = threading.Lock()  # a file must not be closed while a thread reads it
        self._closed = False

    async def __aenter__(self) -> _Job:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._server.close(self._call)
        seconds = round(self.seconds, 3)
        log.info("file", extra={"seconds": seconds, "error": kind and kind.__name__})
        with self._reading:
            self._closed = True
            self._file.close()
        await self._form.close()

    def _on_news(self, call: Call, news: News) -> None:
        self._news.put_nowait(news)

    async def results(self) -> AsyncGenerator[Result, None]:
        """Feed the file, and yield what comes."""
        feeding = asyncio.create_task(self._feed())
        feeding.add_done_callback(self._on_fed)
        try:
            while True:
                news = await self._news.get()
                if isinstance(news, BaseException):
                    raise news
                if news.error is not None:
                    raise NemostreamError(news.error)
                if news.result is not None:
                    yield news.result
                if news.ended:
                    return
        finally:
            feeding.cancel()

    async def last(self) -> Result:
        """Feed the file, and return the result that has all of it."""
        async with contextlib.aclosing(self.results()) as results:
            async for result in results:
                if result.final:
                    return result
        raise AssertionError("a call ends with a final result")

    def _on_fed(self, feeding: asyncio.Task[None]) -> None:
        if not feeding.cancelled() and (error := feeding.exception()) is not None:
            self._news.put_nowait(error)

    def _next(self, blocks: Iterator[Samples]) -> Samples | None:
        with self._reading:
            return None if self._closed else next(blocks, None)

    async def _feed(self) -> None:
        blocks = self._file.blocks(round(_BLOCK_SECONDS * self._file.sample_rate))
        while (block := await asyncio.to_thread(self._next, blocks)) is not None:
            self.seconds += len(block) / self._file.sample_rate
            mono = select_channels(block, "mix")
            self._call.feed(np.ascontiguousarray(mono, "<f4").tobytes())
            await self._call.room()
        self._call.end()


class _EventStream(StreamingResponse):
    """Server-Sent Events of a job, which ends with the response even if the client left before the first."""

    def __init__(self, job: _Job) -> None:
        super().__init__(_events(job), media_type="text/event-stream")
        self._job = job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        async with self._job:
            await super().__call__(scope, receive, send)


async def _events(job: _Job) -> AsyncIterator[str]:
    """Server-Sent Events: deltas, then the whole text."""

    def event(value: dict[str, Any]) -> str:
        return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"

    text = ""
    try:
        async for result in job.results():
            if result.delta:
                yield event({"type": "transcript.text.delta", "delta": result.delta})
            text = result.text
        usage = {"type": "duration", "seconds": round(job.seconds, 3)}
        yield event({"type": "transcript.text.done", "text": text, "usage": usage})
    except NemostreamError as error:  # the status has been sent long ago
        yield event({"type": "error", "error": {"message": str(error)}})


def _answer(
    wanted: str, times: set[str], server: Server, last: Result, name: str, seconds: float
) -> Response:
    transcript = Transcript(last.text, last.language, seconds, (), last.words)
    if wanted == "json":
        usage = {"type": "duration", "seconds": round(seconds, 3)}
        return JSONResponse({"text": transcript.text, "usage": usage})
    if wanted == "verbose_json":
        body: dict[str, Any] = {
            "task": "transcribe",
            "language": transcript.language,
            "duration": round(seconds, 3),
            "text": transcript.text,
        }
        if "segment" in times:
            body["segments"] = [
                {"id": number, "start": round(s.start, 3), "end": round(s.end, 3), "text": s.text}
                for number, s in enumerate(segments_of(transcript))
            ]
        if "word" in times:
            body["words"] = [
                {"word": w.text, "start": round(w.start, 3), "end": round(w.end, 3)} for w in transcript.words
            ]
        return JSONResponse(body)
    context = server.model.att_context(server.config.latency)
    recognition = Recognition(name, server.config.model, server.model.backend, context, (transcript,))
    text = WRITERS["txt" if wanted == "text" else wanted](recognition)
    return PlainTextResponse(text)
