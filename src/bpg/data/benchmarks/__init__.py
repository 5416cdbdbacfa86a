"""The benchmarks that are known by name: one file each, which says where images lie, which split, which labels."""
