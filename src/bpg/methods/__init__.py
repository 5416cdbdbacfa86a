"""The methods: how each learns a domain, and how it answers."""
