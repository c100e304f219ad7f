"""What a schema of each type means: parsing, canonical text, compatibility. Pure; knows no subjects."""
