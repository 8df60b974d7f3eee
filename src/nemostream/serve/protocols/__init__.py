"""One protocol a file: messages in, audio and requests to a call; results out, messages."""
