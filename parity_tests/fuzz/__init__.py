"""Drawn cases by the thousand: a seed goes in; the simplest cases that differ come out."""
