"""A hardened XML reader, edits of XML files, xacro."""
