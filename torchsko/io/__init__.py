"""Readers of robot files: each turns one into a description, and says what it left out."""
