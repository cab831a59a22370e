"""Makes tests/fixtures/images: a photo-like image, and what Pillow makes of it with the steps of torchvision and of YOLO.

    python scripts/verify-external/make_image_fixtures.py [--check]

Needs pillow and numpy. --check compares with the committed files instead of writing them.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from PIL import Image

FOLDER = Path(__file__).resolve().parents[2] / "tests/fixtures/images"


def source():
    """Smooth colours with edges and noise, 61 x 43 pixels."""
    rng = np.random.default_rng(7)
    y, x = np.mgrid[0:43, 0:61]
    channels = [127 + 100 * np.sin(x / 5 + y / 9), 4.0 * x, 255 - 5.0 * y]
    pixels = np.stack(channels, axis=-1) + rng.normal(0, 12, (43, 61, 3))
    pixels[10:20, 30:45] = [250, 10, 60]
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def crop(image, shorter, height, width):
    """torchvision's Resize(shorter) and CenterCrop((height, width)); antialias is the default."""
    w, h = image.size
    short, long = min(w, h), max(w, h)
    new_long = int(shorter * long / short)
    size = (new_long, shorter) if w >= h else (shorter, new_long)
    image = image.resize(size, Image.BILINEAR)
    left = int(round((size[0] - width) / 2.0))
    top = int(round((size[1] - height) / 2.0))
    return image.crop((left, top, left + width, top + height))


def pad(image, height, width):
    """The letterbox of YOLO: margins of the grey value 114."""
    w, h = image.size
    factor = min(width / w, height / h)
    size = (round(w * factor), round(h * factor))
    result = Image.new("RGB", (width, height), (114, 114, 114))
    result.paste(image.resize(size, Image.BILINEAR), ((width - size[0]) // 2, (height - size[1]) // 2))
    return result


def images():
    image = source()
    return {
        "source.png": image,
        "crop.png": crop(image, 32, 28, 27),
        "stretch.png": image.resize((20, 31), Image.BILINEAR),
        "pad.png": pad(image, 40, 40),
        "enlarged.png": crop(image, 64, 56, 60),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, image in images().items():
        path = FOLDER / name
        if check:
            if not np.array_equal(np.asarray(image), np.asarray(Image.open(path))):
                sys.exit(f"{name} differs")
        else:
            image.save(path, optimize=True)
    print(f"{len(images())} images")


if __name__ == "__main__":
    main()
