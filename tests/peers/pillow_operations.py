"""Prints the CRC-32 of Pillow's result for each operation of RandAugment, as lines of Rust: the list PILLOW in
trainer/src/data/augment/ops.rs. Needs only Pillow."""

import zlib

from PIL import Image, ImageEnhance, ImageOps

WIDTH, HEIGHT = 67, 45
BITS = (1 << 64) - 1


def random_bytes(seed: int, count: int) -> bytes:
    """Numbers of SplitMix64 in 20..199, as in the test."""
    values = bytearray()
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & BITS
        value = seed
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & BITS
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & BITS
        value ^= value >> 31
        values.append(20 + (value * 180 >> 64))
    return bytes(values)


def solarize_add(image: Image.Image, added: int) -> Image.Image:
    """timm's solarize_add."""
    table = [min(255, value + added) if value < 128 else value for value in range(256)]
    return image.point(table * 3)


def main() -> None:
    image = Image.frombytes("RGB", (WIDTH, HEIGHT), random_bytes(4, WIDTH * HEIGHT * 3))
    results = {
        "Op::AutoContrast": ImageOps.autocontrast(image),
        "Op::Equalize": ImageOps.equalize(image),
        "Op::Invert": ImageOps.invert(image),
        "Op::Posterize(3)": ImageOps.posterize(image, 3),
        "Op::Solarize(100.0)": ImageOps.solarize(image, 100),
        "Op::SolarizeAdd(99.0)": solarize_add(image, 99),
    }
    for name in ["Color", "Contrast", "Brightness", "Sharpness"]:
        for factor in [0.0, 0.19, 1.33, 1.81]:
            results[f"Op::{name}({factor})"] = getattr(ImageEnhance, name)(image).enhance(factor)
    for name, result in results.items():
        crc = f"{zlib.crc32(result.tobytes()):08x}"
        print(f"        ({name}, 0x{crc[:4]}_{crc[4:]}),")


if __name__ == "__main__":
    main()
