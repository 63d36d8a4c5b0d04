"""Control laws in joint space."""
