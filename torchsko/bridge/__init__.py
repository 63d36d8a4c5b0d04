"""The one room that knows both towers: a mechanism at a state becomes an SKO model."""
