"""What sonde knows of PyTorch; nothing here imports torch unless the program has."""
