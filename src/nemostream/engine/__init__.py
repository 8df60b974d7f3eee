"""The streaming engine: one piece of code for live audio, files and servers."""
