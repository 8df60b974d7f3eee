"""Many telephone calls at once against a running server: how long does a caller wait for the final text?

The calls are made by a process of their own, over real sockets, in packets of 20 ms; see `docs/load.md`.
"""
