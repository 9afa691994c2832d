"""How a study is measured: one unit, many units here or elsewhere, and the store that keeps their results."""
