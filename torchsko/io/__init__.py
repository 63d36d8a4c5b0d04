"""Robot files, read and written: each reader turns one into a description, and says what it left out."""
