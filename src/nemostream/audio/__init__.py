"""Audio in: raw PCM packets, numpy arrays and files become float32 mono at the model's sample rate."""

from nemostream.audio.channels import Channels, check_channels, select_channels, split_channels
from nemostream.audio.files import AudioFile, AudioSource, load_audio, stream_audio
from nemostream.audio.pcm import ENCODINGS, PcmDecoder, Samples, as_float32, check_samples, encoding_name
from nemostream.audio.resample import Resampler, check_rate

__all__ = [
    "ENCODINGS",
    "AudioFile",
    "AudioSource",
    "Channels",
    "PcmDecoder",
    "Resampler",
    "Samples",
    "as_float32",
    "check_channels",
    "check_rate",
    "check_samples",
    "encoding_name",
    "load_audio",
    "select_channels",
    "split_channels",
    "stream_audio",
]
