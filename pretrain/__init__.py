"""How bpg-vit-nano was made: see README.md beside this file."""
