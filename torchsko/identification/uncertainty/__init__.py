"""Residuals, covariances and identifiability."""
