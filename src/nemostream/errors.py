"""Every error that a user can meet.

Each message is one sentence or two: what was wrong, what was expected, what to do. The command line
prints the message alone and ends with the class's ``exit_code``; a program catches `NemostreamError`.
"""


class NemostreamError(Exception):
    """Base of all errors that nemostream raises on purpose."""

    exit_code = 1


class AudioError(NemostreamError):
    """The audio cannot be used: unreadable, empty, not finite, of an unknown encoding or rate."""

    exit_code = 3


class CheckpointError(NemostreamError):
    """A checkpoint or bundle is missing, incomplete, altered, or not of this model family."""

    exit_code = 4


class ConfigError(CheckpointError):
    """A configuration does not describe a model of this family."""


class ContextError(NemostreamError):
    """An ``att_context_size`` or latency that this model cannot run with."""

    exit_code = 5


class LanguageError(NemostreamError):
    """A language that the model has no prompt for."""

    exit_code = 6


class BackendError(NemostreamError):
    """A runtime that is not installed, or cannot run this bundle."""

    exit_code = 7


class HubError(CheckpointError):
    """A model could not be fetched, or what was fetched is not what was pinned."""


class SessionError(NemostreamError):
    """A stream was used in a way that its protocol does not allow, such as feeding it after `finish`."""
