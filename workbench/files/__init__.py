"""Files: validated when read, written atomically, never unpickled."""
