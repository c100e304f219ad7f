"""Records as people write and read them: parsing lines, sending, and formatting as text or JSON."""
