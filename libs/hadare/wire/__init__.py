"""How the nouns travel: subjects, endpoints, records, and the codec."""
