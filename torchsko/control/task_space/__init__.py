"""Control laws in task space: impedance and whole-body control."""
