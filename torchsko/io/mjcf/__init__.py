"""Read, edit and write MJCF files."""
