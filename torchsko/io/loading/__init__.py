"""Loading of robots from files, compiled MuJoCo models and descriptions."""
