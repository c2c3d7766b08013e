"""Translator training: a corpus and settings go in; a trained model comes out."""
