"""Trees and where every number of a model stands; no values."""
