"""A hardened XML reader, edits of XML files and expansion of xacro macros."""
