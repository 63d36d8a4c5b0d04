"""Control in joint space: computed torque, PD and adaptive control."""
