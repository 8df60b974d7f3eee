"""Bundles for CoreML: the reference network as ``.mlpackage`` graphs, with the published ports' contracts."""
