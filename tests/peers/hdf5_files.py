"""Writes the HDF5 files of the trainer's tests, with h5py.

    make goldens

Pixels of bytes are (7 x index in the array) % 251, pixels of floats index / 8; labels are row % 4.
"""

import pathlib
import shutil

import h5py
import numpy

FOLDER = pathlib.Path(__file__).resolve().parent / "goldens" / "hdf5"


def pixels(shape, dtype):
    places = numpy.arange(numpy.prod(shape)).reshape(shape)
    return ((7 * places) % 251 if dtype == "uint8" else places / 8).astype(dtype)


def labels(rows, dtype="int64"):
    return (numpy.arange(rows) % 4).astype(dtype)


def write(name, arrays, **options):
    with h5py.File(FOLDER / name, "w", **options) as file:
        for array, (values, how) in arrays.items():
            file.create_dataset(array, data=values, **how)


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)

    # Like fastMRI's reconstruction_rss: floats of one channel, contiguous.
    write("slices.h5", {"images": (pixels((5, 12, 10), "float32"), {}), "labels": (labels(5), {})})

    # Like PatchCamelyon: compressed chunks, channels last, and labels of four dimensions in a separate file.
    packed = {"chunks": (4, 8, 8, 3), "compression": "gzip", "shuffle": True, "fletcher32": True}
    write("patches_x.h5", {"x": (pixels((10, 8, 8, 3), "uint8"), packed)})
    write("patches_y.h5", {"y": (labels(10, "uint8").reshape(10, 1, 1, 1), {})})

    # The newest format version, which has other chunk indexes; big-endian.
    for extents, name in [((6, 3, 8, 8), "fixed"), ((None, 3, 8, 8), "growing"), ((None, None, 8, 8), "growing_twice")]:
        how = {"chunks": (2, 3, 8, 8), "maxshape": extents}
        arrays = {"images": (pixels((6, 3, 8, 8), ">f4"), how), "labels": (labels(6, ">i4"), {})}
        write(f"{name}.h5", arrays, libver="latest")

    # With a user block before the file's content.
    arrays = {"images": (pixels((6, 3, 8, 8), "float32"), {}), "labels": (labels(6), {})}
    write("user_block.h5", arrays, userblock_size=512)

    # Not closed by its writer.
    with h5py.File(FOLDER / "whole.h5", "w", libver="latest") as file:
        file.create_dataset("images", data=pixels((4, 3, 8, 8), "uint8"))
        file.create_dataset("labels", data=labels(4))
        file.flush()
        shutil.copy(FOLDER / "whole.h5", FOLDER / "open.h5")
    (FOLDER / "whole.h5").unlink()

    # Unsupported files.
    images = pixels((4, 3, 8, 8), "uint8")
    write("lzf.h5", {"images": (images, {"compression": "lzf"}), "labels": (labels(4), {})})
    write("complex.h5", {"images": (images.astype("complex64"), {}), "labels": (labels(4), {})})
    write("bool.h5", {"images": (images, {}), "labels": (labels(4).astype(bool), {})})
    with h5py.File(FOLDER / "group.h5", "w") as file:
        file["train/images"], file["train/labels"] = images, labels(4)
    with h5py.File(FOLDER / "link.h5", "w") as file:
        file["images"], file["labels"] = h5py.ExternalLink("lzf.h5", "images"), labels(4)
    with h5py.File(FOLDER / "virtual.h5", "w") as file:
        layout = h5py.VirtualLayout(images.shape, "uint8")
        layout[:] = h5py.VirtualSource("lzf.h5", "images", images.shape)
        file.create_virtual_dataset("images", layout)
        file["labels"] = labels(4)
    with h5py.File(FOLDER / "variable.h5", "w") as file:
        file.create_dataset("images", (4,), dtype=h5py.vlen_dtype("uint8"))[0] = [1, 2]
        file["labels"] = labels(4)
    with h5py.File(FOLDER / "huge.h5", "w") as file:
        file.create_dataset("images", shape=(1 << 40, 3, 64, 64), dtype="uint8", chunks=(1, 3, 64, 64))
        file.create_dataset("labels", data=labels(4))


if __name__ == "__main__":
    main()
