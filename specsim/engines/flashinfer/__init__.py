"""FlashInfer's sampling, built from its headers."""
