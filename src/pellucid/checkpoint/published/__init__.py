"""Models in the formats of others: a file or folder as a `ModelSource`, and back."""
