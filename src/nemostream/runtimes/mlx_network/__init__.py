"""The network in MLX, beside `nemostream.model`, which defines it: same modules, same checkpoint names.

What differs is layout (`weights`): MLX has channels last, and the masks of a call are made on the host
(`rows`), where all that they depend on is known. `streams` holds the state of every stream on the device.
"""
