"""vLLM v1's rejection sampling and EAGLE input kernels, lifted from its source."""
