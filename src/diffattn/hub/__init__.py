"""Models as folders and as other people keep them."""
