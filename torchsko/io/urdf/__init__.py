"""Read, edit and write URDF files."""
