"""Rules about the source itself: layers, interface, style."""
