"""Windows to look through: arrays as pictures and figures, and a report as one HTML file."""
