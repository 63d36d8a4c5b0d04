"""Trees, operators on them, and SKO models of any block sizes; nothing here knows about robots."""
