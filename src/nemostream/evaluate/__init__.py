"""How good is a model: error rates with confidence, punctuation, latency, and reports that compare two."""
