"""What the Makefile's targets run: setting up and building. Nothing that an installed Mainstem needs."""
