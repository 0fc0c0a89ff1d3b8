"""Natural-image crops with fixed seeds, for calibration (one seed) and for evaluation (another)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tests.zoo import fetch

IMAGES = ("chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png", "astronaut.png", "retina.jpg", "hubble_deep_field.jpg", "ihc.png")


TEXT = ("page.png", "text.png")


def crops(
    count: int, *, seed: int, size: int = 224, mean: float = 0.498, std: float = 0.502, names: tuple[str, ...] = IMAGES
) -> NDArray[np.float32]:
    """Square random crops of the images `names`, half of them mirrored, as float32 [count, 3, size, size]: (x/255 - mean) / std."""
    rng = np.random.RandomState(seed)
    folder = fetch.path("images")
    images = [Image.open(folder / name).convert("RGB") for name in names if (folder / name).exists()]
    out = []
    for k in range(count):
        image = images[k % len(images)]
        side = int(rng.uniform(0.35, 1.0) * min(image.size))
        left, top = rng.randint(0, image.size[0] - side + 1), rng.randint(0, image.size[1] - side + 1)
        crop = image.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BILINEAR)
        pixels = np.asarray(crop, np.float32) / 255
        if rng.rand() < 0.5:
            pixels = pixels[:, ::-1]
        out.append(((pixels - mean) / std).transpose(2, 0, 1))
    return np.ascontiguousarray(np.stack(out), np.float32)
