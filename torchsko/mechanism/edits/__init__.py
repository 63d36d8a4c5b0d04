"""Copies of a mechanism with joints locked or a second mechanism attached."""
