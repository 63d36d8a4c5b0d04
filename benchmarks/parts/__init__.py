"""The parts of the suite: each a module with ``run(options)`` that returns a section."""
