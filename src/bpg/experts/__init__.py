"""Experts: what is learned for one domain, and how it acts on the frozen backbone."""
