"""Parts that the readers and writers share."""
