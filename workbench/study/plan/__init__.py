"""What a study measures: units of work, the paper's tables, grids of settings, the paper's numbers."""
