"""edgekit packages a trained model for one kind of edge device, within a byte budget, and proves it there against the desktop reference."""

import os

__version__ = "0.1.0"

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # ONNX Runtime 1.29 and newer reports what it runs, unless told before it is loaded
