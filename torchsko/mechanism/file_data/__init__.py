"""Plain data of robot files: actuators, sensors and parameters of constraint solvers."""
