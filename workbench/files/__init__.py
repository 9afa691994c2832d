"""Files: read with bounds, written whole or not at all, never unpickled."""
