"""What is measured on a trained model: held-out loss and its parts, attention maps."""
