"""The server: many live calls on one model, in the protocols that clients already speak."""
