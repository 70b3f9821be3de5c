"""Tokenizers and chat templates, built from a model file's own metadata."""

from flarecore.tokenizer.tokenizer import Tokenizer

__all__ = ["Tokenizer"]
