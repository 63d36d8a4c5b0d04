"""Filters, resampling and cleaning of signals."""
