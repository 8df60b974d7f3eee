"""The one definition of the network, in PyTorch. Read `network.py` first."""
