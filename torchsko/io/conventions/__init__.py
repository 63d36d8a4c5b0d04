"""Conversion to and from the conventions of other libraries."""
