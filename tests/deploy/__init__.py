"""What is in deploy/, tried with real programs: the image on a container engine, and linters."""
