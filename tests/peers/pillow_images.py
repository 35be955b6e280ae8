"""Writes image files of many kinds, with checksums of the pixels that Pillow decodes, in color and gray.

    make goldens         200 files for the trainer's tests (tests/peers/goldens/images)
    make check-images    2,000 other files

JPEG files with samplings, scans and color spaces that Pillow does not write are built from random coefficients, PNG files
from random bytes with random filters, and TIFF files strip by strip. Needs only NumPy and Pillow.
"""

import argparse
import io
import itertools
import json
import pathlib
import struct
import warnings
import zlib

import numpy
from PIL import ExifTags, Image

FOLDER = pathlib.Path(__file__).resolve().parent / "goldens" / "images"
ZIGZAG = sorted(range(64), key=lambda i: (i // 8 + i % 8, (i // 8 if (i // 8 + i % 8) % 2 else i % 8)))


def picture(random, width, height):
    """Smooth colors with noise, so that every part of a decoder matters."""
    small = random.integers(0, 256, (4, 4, 3), dtype=numpy.uint8)
    image = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
    noise = random.integers(-20, 21, (height, width, 3))
    return Image.fromarray(numpy.clip(numpy.asarray(image) + noise, 0, 255).astype(numpy.uint8))


def encoded(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def segment(marker, content):
    return bytes([255, marker]) + struct.pack(">H", len(content) + 2) + content


class Entropy:
    """The bits of a scan, with the Huffman tables of a file by Pillow."""

    def __init__(self, tables):
        self.tables, self.bits = tables, []

    def value(self, table, run, value):
        length = abs(value).bit_length()
        self.bits.append(self.tables[table][run << 4 | length])
        if length:
            self.bits.append(format(value if value > 0 else value + (1 << length) - 1, f"0{length}b"))

    def take(self):
        bits = "".join(self.bits)
        self.bits = []
        bits += "1" * (-len(bits) % 8)
        return bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8)).replace(b"\xff", b"\xff\0")


def huffman_tables(segments):
    tables = {}
    for marker, content in segments:
        while marker == 0xC4 and content:
            kind, counts = content[0], content[1:17]
            values, content = content[17 : 17 + sum(counts)], content[17 + sum(counts) :]
            code, codes, values = 0, {}, iter(values)
            for length, count in enumerate(counts, 1):
                for _ in range(count):
                    codes[next(values)] = format(code, f"0{length}b")
                    code += 1
                code <<= 1
            tables[kind] = codes
    return tables


def jpeg_of_coefficients(random, width, height, sampling, scans, restart, adobe):
    """A baseline file. `sampling` has the two factors of each component, `scans` lists the components of each scan."""
    plain = encoded(Image.new("RGB", (16, 16)), "JPEG", quality=int(random.integers(40, 95)))
    place, segments = 2, []
    while plain[place + 1] != 0xDA:
        (length,) = struct.unpack(">H", plain[place + 2 : place + 4])
        segments.append((plain[place + 1], plain[place + 4 : place + 2 + length]))
        place += 2 + length
    entropy = Entropy(huffman_tables(segments))
    most = [max(factors[axis] for factors in sampling) for axis in (0, 1)]
    rounded = lambda length, per: -(-length // per)
    mcus = rounded(width, 8 * most[0]), rounded(height, 8 * most[1])
    blocks = []
    for horizontal, vertical in sampling:
        shape = mcus[1] * vertical, mcus[0] * horizontal, 64
        block = numpy.zeros(shape, int)
        block[..., 0] = random.integers(-40, 41, shape[:2])
        for _ in range(3):
            block[..., random.integers(1, 64)] = random.integers(-3, 4, shape[:2])
        blocks.append(block)

    def write(component, row, column, before):
        table = int(component in (1, 2))
        values = blocks[component][row, column]
        entropy.value(table, 0, int(values[0]) - before[component])
        before[component] = int(values[0])
        run = 0
        for value in values[ZIGZAG][1:]:
            if not value:
                run += 1
                continue
            for _ in range(run // 16):
                entropy.bits.append(entropy.tables[16 | table][0xF0])
            entropy.value(16 | table, run % 16, int(value))
            run = 0
        if run:
            entropy.bits.append(entropy.tables[16 | table][0])

    file = [b"\xff\xd8"]
    if adobe is not None:
        file.append(segment(0xEE, b"Adobe" + struct.pack(">HHHB", 100, 0, 0, adobe)))
    file += [segment(marker, content) for marker, content in segments if marker in (0xDB, 0xC4)]
    header = struct.pack(">BHHB", 8, height, width, len(sampling))
    for component, factors in enumerate(sampling):
        header += bytes([component + 1, factors[0] << 4 | factors[1], int(component in (1, 2))])
    file.append(segment(0xC0, header))
    if restart:
        file.append(segment(0xDD, struct.pack(">H", restart)))
    for scan in scans:
        parts = b"".join(bytes([part + 1, 17 * int(part in (1, 2))]) for part in scan)
        file.append(segment(0xDA, bytes([len(scan)]) + parts + bytes([0, 63, 0])))
        if len(scan) == 1:
            # A scan of one component omits padding blocks.
            (part,) = scan
            columns = rounded(rounded(width * sampling[part][0], most[0]), 8)
            rows = rounded(rounded(height * sampling[part][1], most[1]), 8)
            units = [[(part, row, column)] for row in range(rows) for column in range(columns)]
        else:
            units = [
                [
                    (part, row * sampling[part][1] + down, column * sampling[part][0] + right)
                    for part in scan
                    for down in range(sampling[part][1])
                    for right in range(sampling[part][0])
                ]
                for row in range(mcus[1])
                for column in range(mcus[0])
            ]
        before = [0] * len(sampling)
        for number, unit in enumerate(units):
            if restart and number and number % restart == 0:
                file.append(entropy.take() + bytes([255, 0xD0 + (number // restart - 1) % 8]))
                before = [0] * len(sampling)
            for block in unit:
                write(*block, before)
        file.append(entropy.take())
    return b"".join(file) + b"\xff\xd9"


def jpeg(random, width, height):
    image = picture(random, width, height)
    how = random.integers(0, 6)
    options = {"quality": int(random.integers(5, 100)), "progressive": bool(random.integers(0, 2))}
    if random.integers(0, 3) == 0:
        options["restart_marker_blocks"] = int(random.integers(1, 9))
    if how == 0:
        return "jpg", encoded(image.convert("L"), "JPEG", **options)
    if how == 1:
        return "jpg", encoded(image.convert("CMYK"), "JPEG", **options)
    if how == 2:
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = int(random.integers(1, 9))
        return "jpg", encoded(image, "JPEG", exif=exif, keep_rgb=bool(random.integers(0, 2)), **options)
    if how == 3:
        return "jpg", encoded(image, "JPEG", subsampling=int(random.integers(0, 3)), **options)
    # libjpeg needs factors with integer ratios, and at most ten blocks in a unit of several components.
    factors = [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (4, 2)]
    first = factors[random.integers(0, len(factors))]
    four = random.integers(0, 5) == 0
    if four:
        sampling, adobe = [first, (1, 1), (1, 1), first], int(random.choice([0, 2]))
        scans = [[0], [1], [2], [3]] if 2 * first[0] * first[1] + 2 > 10 else [[0, 1, 2, 3]]
    else:
        sampling, adobe = [first, (1, 1), (1, 1)], [None, None, 0, 1][random.integers(0, 4)]
        scans = [[[0, 1, 2]], [[0], [1], [2]], [[0], [1, 2]], [[0, 1], [2]]][random.integers(0, 4)]
    restart = int(random.choice([0, 0, 1, 3]))
    return "jpg", jpeg_of_coefficients(random, width, height, sampling, scans, restart, adobe)


def png(random, width, height):
    channels, depths = [(1, (1, 2, 4, 8, 16)), (3, (8, 16)), (1, (1, 2, 4, 8)), (2, (8, 16)), (4, (8, 16))][
        kind := random.integers(0, 5)
    ]
    depth, color, interlaced = int(random.choice(depths)), [0, 2, 3, 4, 6][kind], bool(random.integers(0, 2))
    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    rows = b""
    for left, top, right, down in passes:
        columns, lines = max(0, -(-(width - left) // right)), max(0, -(-(height - top) // down))
        for _ in range(lines if columns else 0):
            filtered = random.integers(0, 256, -(-columns * channels * depth // 8), dtype=numpy.uint8).tobytes()
            # Filters could move indices out of the palette.
            rows += bytes([0 if color == 3 else int(random.integers(0, 5))]) + filtered
    chunk = lambda name, content: struct.pack(">I", len(content)) + (
        name + content + struct.pack(">I", zlib.crc32(name + content))
    )
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlaced))
    if color == 3:
        palette = random.integers(0, 256, 3 << depth, dtype=numpy.uint8).tobytes()
        file += chunk(b"PLTE", palette)
        if random.integers(0, 2):
            file += chunk(b"tRNS", random.integers(0, 256, 1 << depth, dtype=numpy.uint8).tobytes())
    elif color in (0, 2) and random.integers(0, 3) == 0:
        file += chunk(b"tRNS", struct.pack(">H", 1) * channels)
    return "png", file + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def webp(random, width, height):
    image = picture(random, width, height)
    if random.integers(0, 2):
        image.putalpha(Image.fromarray(random.integers(0, 256, (height, width), dtype=numpy.uint8)))
    options = {"lossless": bool(random.integers(0, 2)), "quality": int(random.integers(0, 101))}
    options |= {"method": int(random.integers(0, 7)), "exact": bool(random.integers(0, 2))}
    if random.integers(0, 6) == 0:
        options |= {"save_all": True, "append_images": [picture(random, width, height)], "duration": 10}
    return "webp", encoded(image, "WEBP", **options)


def tiff_of_strips(random, width, height):
    """Uncompressed: either byte order, planar or interleaved, 8 or 16 bits, zero as black or white.

    Also returns the original pixels: with 16 bits Pillow mixes up planes, and confuses white and black.
    """
    order = str(random.choice(["<", ">"]))
    samples = int(random.choice([1, 3]))
    planes, depth = samples == 3 and bool(random.integers(0, 2)), int(random.choice([8, 16]))
    photometric = 2 if samples == 3 else int(random.integers(0, 2))
    values = random.integers(0, 1 << depth, (samples, height, width))
    rows = int(random.integers(1, height + 1))
    parts = list(values[:, None]) if planes else [numpy.moveaxis(values, 0, -1)[None]]
    kind = numpy.dtype(f"u{depth // 8}").newbyteorder(order)
    strips = [part[0, top : top + rows].astype(kind).tobytes() for part in parts for top in range(0, height, rows)]
    places = list(itertools.accumulate([8] + [len(strip) for strip in strips]))
    directory = places.pop()
    directory += directory % 2
    tags = [(256, 4, [width]), (257, 4, [height]), (258, 3, [depth] * samples), (259, 3, [1]), (262, 3, [photometric])]
    tags += [(273, 4, places), (277, 3, [samples]), (278, 4, [rows]), (279, 4, [len(strip) for strip in strips])]
    tags += [(284, 3, [2 if planes else 1])]
    entries, beside = struct.pack(order + "H", len(tags)), b""
    after = directory + 2 + 12 * len(tags) + 4
    for tag, kind, numbers in tags:
        content = struct.pack(f"{order}{len(numbers)}{'H' if kind == 3 else 'I'}", *numbers)
        entries += struct.pack(order + "HHI", tag, kind, len(numbers))
        if len(content) <= 4:
            entries += content.ljust(4, b"\0")
        else:
            entries += struct.pack(order + "I", after + len(beside))
            beside += content
    start = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", directory)
    file = (start + b"".join(strips)).ljust(directory, b"\0") + entries + b"\0\0\0\0" + beside
    if photometric == 0:
        values = (1 << depth) - 1 - values
    pixels = numpy.moveaxis(values >> (depth - 8), 0, -1).astype(numpy.uint8)
    return file, Image.fromarray(pixels[..., 0] if samples == 1 else pixels)


def tiff(random, width, height):
    if random.integers(0, 3) == 0:
        file, image = tiff_of_strips(random, width, height)
        return "tif", file, image
    image = picture(random, width, height)
    mode = str(random.choice(["1", "L", "RGB", "RGBA", "LA", "CMYK"]))
    if mode in ("RGBA", "LA"):
        image.putalpha(Image.fromarray(random.integers(0, 256, (height, width), dtype=numpy.uint8)))
    compressions = ["raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"] + ["group4"] * (mode == "1")
    options = {"compression": str(random.choice(compressions))}
    if mode != "1" and options["compression"] in ("tiff_lzw", "tiff_adobe_deflate") and random.integers(0, 2):
        options["tiffinfo"] = {317: 2}
    if random.integers(0, 3) == 0:
        options.setdefault("tiffinfo", {})[274] = int(random.integers(1, 9))
    return "tif", encoded(image.convert(mode), "TIFF", **options)


def upper_bytes(image):
    """The upper bytes of 16-bit gray, as Pillow does for 16-bit colors. Its own conversion makes values above 255 white."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((numpy.asarray(image).astype(numpy.uint32) >> 8).astype(numpy.uint8))


def checksums(file, image=None):
    """Checksums of the pixels in color and gray, decoded by Pillow unless `image` is given."""
    image = image or upper_bytes(Image.open(io.BytesIO(file)))
    return {
        "width": image.width,
        "height": image.height,
        "color": zlib.crc32(image.convert("RGB").tobytes()),
        "grey": zlib.crc32(image.convert("L").tobytes()),
    }


def main():
    warnings.filterwarnings("ignore", "Palette images with Transparency")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=FOLDER)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--side", type=int, default=40, help="largest side of an image")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for old in arguments.output.iterdir():
        old.unlink()
    expected = {}
    for number in range(arguments.count):
        random = numpy.random.default_rng([arguments.seed, number])
        width, height = (int(side) for side in random.integers(1, arguments.side + 1, 2))
        ending, file, *image = (jpeg, png, webp, tiff, jpeg)[number % 5](random, width, height)
        name = f"{number:04}.{ending}"
        (arguments.output / name).write_bytes(file)
        expected[name] = checksums(file, *image)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(values)}" for name, values in expected.items())
    (arguments.output / "expected.json").write_text("{\n" + lines + "\n}\n")
    print(f"{arguments.count} files in {arguments.output}")


if __name__ == "__main__":
    main()
