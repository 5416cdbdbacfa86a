"""How fast it is: ratios to what people would use instead, measured in one run. `bpg bench` prints and writes them."""
