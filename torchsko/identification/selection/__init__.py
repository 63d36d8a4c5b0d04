"""Selection of friction terms and weights by cross-validation."""
