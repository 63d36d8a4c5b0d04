"""Mechanisms with embedded loops: closed configurations, independent dofs, and their construction."""
