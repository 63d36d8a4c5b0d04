"""Normal equations and least squares on base parameters."""
