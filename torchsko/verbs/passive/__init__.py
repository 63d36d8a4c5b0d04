"""Passive joint forces, one file a term; `passive_forces` lists and adds them."""
