"""How a robot comes in: from a file, a compiled model of MuJoCo, or a description."""
