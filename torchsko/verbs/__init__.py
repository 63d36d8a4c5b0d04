"""What users call on a mechanism."""
