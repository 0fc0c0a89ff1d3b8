"""edgekit packages a trained model for one kind of edge device, within a byte budget, and proves it there against the desktop reference."""

__version__ = "0.1.0"
