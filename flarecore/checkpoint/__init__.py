"""Checkpoints of decoders: a directory with config.json, safetensors files and a tokenizer."""
