"""Log-mel features, computed exactly as the checkpoints expect them."""

from nemostream.features.mel import IncrementalLogMel, log_mel, mel_filterbank

__all__ = ["IncrementalLogMel", "log_mel", "mel_filterbank"]
