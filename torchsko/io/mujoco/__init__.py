"""Convert compiled MuJoCo models."""
