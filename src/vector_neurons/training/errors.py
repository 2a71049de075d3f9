"""Errors of training and testing; every message is one line."""


class ConfigError(ValueError):
    """A configuration that cannot be used."""


class TrainingError(RuntimeError):
    """A training or a test that cannot start or continue."""


class StoppedError(TrainingError):
    """A signal stopped the training, and its checkpoint is written."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class ResumeError(ValueError):
    """A run that has no usable checkpoint to resume from."""
