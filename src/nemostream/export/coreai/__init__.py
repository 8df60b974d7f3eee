"""Export to Core AI: the reference network as stateless graphs. Read `bundle.py` first."""
