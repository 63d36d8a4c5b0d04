"""Results of fits: summaries, reports and files."""
