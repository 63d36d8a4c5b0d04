"""Readers and writers of robot files, and conversion to the conventions of other libraries."""
