"""Quantizing ONNX graphs: float model in, QDQ model out. Shared by the backends of the ONNX family, which do not know one another.

Arithmetic is that of `edgekit.quantize`; this package finds layers, runs the float model for what they see, and writes the result.
"""
