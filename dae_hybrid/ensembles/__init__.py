"""Ensembles: many runs on one machine or many, with results that survive failures."""
