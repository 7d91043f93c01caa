"""Everything that knows PyTorch's internals; nothing here imports torch unless the program has."""
