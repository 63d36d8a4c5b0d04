"""Plain data of robot files: actuators and parameters of constraint solvers."""
