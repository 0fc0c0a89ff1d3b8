"""Framework-free quantization: from layers (weights, bias, groups, input samples) to integers, scales, biases and ranges."""
