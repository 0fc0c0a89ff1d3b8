"""An integer-only reference of a power-of-two int8 accelerator (AMD's DPU): runs QDQ ONNX with shifts in the place of scales.

`reader.read` turns a file into a `program.Program` once; the program runs many times. Between input quantization and output
dequantization every value is an integer: int8 tensors, 32-bit accumulators, shifts that round by a stated rule, saturation.
"""
