"""Is a bundle what its checkpoint says? Every stage compared, the first point of divergence named."""
