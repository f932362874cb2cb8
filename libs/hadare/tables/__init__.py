"""Data that ships with HadarE, as package data; each file's columns are documented where it is read."""
