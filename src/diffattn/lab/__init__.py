"""The laboratory: plans a fair comparison, runs it, judges it by one rule, and writes the report."""
