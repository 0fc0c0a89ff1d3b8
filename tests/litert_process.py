"""LiteRT's interpreter for another program: `names FOLDER THREADS` writes tensor names, `run` reads input-N.raw and writes output-N.raw."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def main(word: str, folder: Path, threads: int) -> None:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(folder / "model.tflite"), num_threads=threads)
    interpreter.allocate_tensors()
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    if word == "names":
        for role, details in (("inputs", inputs), ("outputs", outputs)):
            (folder / f"{role}.txt").write_text("\n".join(detail["name"] for detail in details))
        return
    for index, detail in enumerate(inputs):
        data = np.frombuffer((folder / f"input-{index}.raw").read_bytes(), detail["dtype"])
        interpreter.set_tensor(detail["index"], data.reshape(detail["shape"]))
    interpreter.invoke()
    for index, detail in enumerate(outputs):
        (folder / f"output-{index}.raw").write_bytes(interpreter.get_tensor(detail["index"]).tobytes())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
