"""The microphone, through the optional package sounddevice (PortAudio)."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nemostream.errors import AudioError, BackendError

BLOCK_SECONDS = 0.04
_MOST_SECONDS_BEHIND = 30.0  # what is queued while recognition is slower than speech; then sound is dropped
_POLL_SECONDS = 0.2  # how long a wait for sound lasts before it is looked at whether to end
_END = None


class Microphone:
    """An open input device, as a context manager and an iterator over blocks of samples.

    Args:
        device: its number or a part of its name; None takes the system's default.

    Attributes:
        name: of the device.
        sample_rate: the device's own, in Hz.
        dropped: blocks that were lost because recognition was too slow, or the device said so.

    Raises:
        BackendError: if sounddevice or the PortAudio library is missing.
        AudioError: if there is no such device, or it cannot be opened.
    """

    def __init__(self, device: int | str | None = None) -> None:
        self._library = _sounddevice()
        try:
            about = self._library.query_devices(device, "input")
        except (ValueError, self._library.PortAudioError) as error:
            raise AudioError(
                f"There is no input device {device!r} ({error}); `nemostream listen --devices` lists them."
                if device is not None
                else f"This machine has no microphone ({error})."
            ) from error
        self.name = str(about["name"])
        self.sample_rate = int(about["default_samplerate"])
        self.dropped = 0
        self._ended = False
        self._device = device
        self._stream: Any = None
        self._blocks: queue.Queue[NDArray[np.float32] | None] = queue.Queue(
            round(_MOST_SECONDS_BEHIND / BLOCK_SECONDS)
        )

    def __enter__(self) -> Self:
        try:
            self._stream = self._library.InputStream(
                device=self._device,
                samplerate=self.sample_rate,
                channels=1,
                dtype="float32",
                blocksize=round(BLOCK_SECONDS * self.sample_rate),
                callback=self._take,
                finished_callback=lambda: self._put(_END),
            )
            self._stream.start()
        except self._library.PortAudioError as error:
            raise AudioError(f"The microphone {self.name} cannot be opened ({error}).") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.stop()
        self._stream.close()

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        """Yield samples [N] as they come, until the device stops or `end` is called."""
        while not self._ended:
            try:
                block = self._blocks.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            if block is _END:
                return
            yield block

    def end(self) -> None:
        """Make the iteration end; what was recorded until then is `waiting`. May be called at any moment."""
        self._ended = True

    def waiting(self) -> Iterator[NDArray[np.float32]]:
        """Yield what was recorded and not yet taken, without waiting for more."""
        while True:
            try:
                block = self._blocks.get_nowait()
            except queue.Empty:
                return
            if block is not _END:
                yield block

    def _take(self, samples: NDArray[np.float32], count: int, time: Any, status: Any) -> None:
        """Called by PortAudio's thread, whose memory is its own again afterwards."""
        if status:
            self.dropped += 1
        self._put(samples[:, 0].copy())

    def _put(self, block: NDArray[np.float32] | None) -> None:
        try:
            self._blocks.put_nowait(block)
        except queue.Full:
            self.dropped += 1


def input_devices() -> list[tuple[int, str]]:
    """Number and name of every device that can record.

    Raises:
        BackendError: if sounddevice or the PortAudio library is missing.
    """
    devices = enumerate(_sounddevice().query_devices())
    return [(number, str(about["name"])) for number, about in devices if about["max_input_channels"] > 0]


def _sounddevice() -> Any:
    try:
        import sounddevice
    except ModuleNotFoundError as error:
        raise BackendError(
            "Listening needs the package sounddevice; run: pip install 'nemostream[mic]'."
        ) from error
    except OSError as error:
        raise BackendError(
            f"Listening needs the library PortAudio ({error}); install it (apt install libportaudio2)."
        ) from error
    return sounddevice
