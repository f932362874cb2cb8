"""Put on the Python path of the processes of a chaos run."""
