//! 1,797 real handwritten digits as data sets in the binary layouts of CIFAR-10 and CIFAR-100.
//!
//! They come from scikit-learn's wheel (`sklearn/datasets/data/digits.csv.gz`, the test part of the
//! UCI data set "Optical Recognition of Handwritten Digits"): 8x8 images with 17 gray levels, 10
//! classes. Here they are enlarged to 32x32 and repeated in three planes, as in CIFAR. Both layouts have the same images.
//! The 100 classes of the second are the tenths of each digit by ink.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;
use fs_err as fs;

use crate::cache;
use crate::command::{command, run};
use crate::progress::step;

/// The release of the wheel.
const SCIKIT_LEARN: &str = "1.9.1";
const MEMBER: &str = "sklearn/datasets/data/digits.csv.gz";
/// Images in the source.
const IMAGES: usize = 1797;
const CLASSES: [&str; 10] = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine",
];
/// Side in pixels, in the source and in a record.
const SIDE: usize = 8;
const RECORD_SIDE: usize = 32;
/// One in this many images of each class is held out.
const HELD_OUT_EVERY: usize = 5;
/// Number of training files, as in CIFAR-10.
const TRAIN_FILES: usize = 5;
const PIXEL_BYTES: usize = 3 * RECORD_SIDE * RECORD_SIDE;

/// One image of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Digit {
    /// Row by row, 0 (white) to 16 (black).
    pixels: [u8; SIDE * SIDE],
    /// 0 to 9.
    label: u8,
    /// 0 to 99: ten times the label, and the tenth of its images by ink.
    fine_label: u8,
}

/// Number of images written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// In `data_batch_1.bin` to `data_batch_5.bin`.
    pub train: usize,
    /// In `test_batch.bin`.
    pub held_out: usize,
}

/// Writes the data set to the folder `out` by a rename, replacing an existing one.
pub fn write(out: &Path) -> Result<Counts> {
    let mut digits = parse(&source()?)?;
    ensure!(
        digits.len() == IMAGES,
        "scikit-learn's digits have {} images instead of {IMAGES}",
        digits.len()
    );
    set_fine_labels(&mut digits);
    let (train, held_out) = split(digits);
    let parent = out
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    fs::create_dir_all(parent)?;
    let staging = tempfile::Builder::new().prefix(".digits-").tempdir_in(parent)?;
    for (index, part) in train.chunks(train.len().div_ceil(TRAIN_FILES)).enumerate() {
        write_records(
            &staging.path().join(format!("data_batch_{}.bin", index + 1)),
            part,
            |digit| vec![digit.label],
        )?;
    }
    write_records(&staging.path().join("test_batch.bin"), &held_out, |digit| {
        vec![digit.label]
    })?;
    for (file, part) in [("train.bin", &train), ("test.bin", &held_out)] {
        write_records(&staging.path().join(file), part, |digit| {
            vec![digit.label, digit.fine_label]
        })?;
    }
    fs::write(staging.path().join("batches.meta.txt"), CLASSES.join("\n") + "\n")?;
    // Training pods run as an unprivileged user.
    fs::set_permissions(
        staging.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )?;
    if out.exists() {
        fs::remove_dir_all(out)?;
    }
    fs::rename(staging.keep(), out)?;
    Ok(Counts {
        train: train.len(),
        held_out: held_out.len(),
    })
}

/// The source's lines, each 64 pixels and a label, separated by commas.
fn source() -> Result<String> {
    let wheel = wheel()?;
    let mut archive = zip::ZipArchive::new(fs::File::open(&wheel)?)
        .with_context(|| format!("{}: not a wheel", wheel.display()))?;
    let member = archive
        .by_name(MEMBER)
        .with_context(|| format!("{}: has no {MEMBER}", wheel.display()))?;
    let mut text = String::new();
    GzDecoder::new(member)
        .read_to_string(&mut text)
        .with_context(|| format!("{}: {MEMBER}", wheel.display()))?;
    Ok(text)
}

/// scikit-learn's wheel, downloaded if it is not cached.
fn wheel() -> Result<PathBuf> {
    let folder = cache::directory()?.join(format!("scikit-learn-{SCIKIT_LEARN}"));
    let _lock = cache::lock(&cache::directory()?.join("scikit-learn.lock"))?;
    if !folder.exists() {
        let staging = tempfile::Builder::new()
            .prefix(".wheel-")
            .tempdir_in(cache::directory()?)?;
        step(
            format_args!("fetching the digits (scikit-learn {SCIKIT_LEARN}'s wheel)"),
            || {
                // A fixed wheel, independent of the local Python: only its data is read.
                let options = "-m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
                    --python-version=3.12 --implementation=cp --abi=cp312 \
                    --platform=manylinux2014_x86_64 --platform=manylinux_2_28_x86_64 --dest";
                run(command("python3", options.split(' '))
                    .arg(staging.path())
                    .arg(format!("scikit-learn=={SCIKIT_LEARN}")))
            },
        )?;
        fs::rename(staging.keep(), &folder)?;
    }
    let files = fs::read_dir(&folder)?.collect::<std::io::Result<Vec<_>>>()?;
    let wheel = files
        .into_iter()
        .map(|file| file.path())
        .find(|path| path.extension().is_some_and(|e| e == "whl"));
    wheel.with_context(|| {
        format!(
            "{}: contains no wheel; remove the folder to download it again",
            folder.display()
        )
    })
}

fn parse(text: &str) -> Result<Vec<Digit>> {
    text.lines()
        .enumerate()
        .map(|(index, line)| parse_line(line).with_context(|| format!("{MEMBER}, line {}", index + 1)))
        .collect()
}

fn parse_line(line: &str) -> Result<Digit> {
    let numbers = line
        .split(',')
        .map(|word| word.trim().parse::<u8>())
        .collect::<Result<Vec<_>, _>>()?;
    let [pixels @ .., label] = numbers.as_slice() else {
        anyhow::bail!("the line is empty")
    };
    let pixels: [u8; SIDE * SIDE] = pixels
        .try_into()
        .with_context(|| format!("{} pixels instead of {}", pixels.len(), SIDE * SIDE))?;
    ensure!(pixels.iter().all(|pixel| *pixel <= 16), "a pixel is above 16");
    ensure!(usize::from(*label) < CLASSES.len(), "label {label} is above 9");
    Ok(Digit {
        pixels,
        label: *label,
        fine_label: 0,
    })
}

/// Ten fine labels for each label.
fn set_fine_labels(digits: &mut [Digit]) {
    for label in 0..CLASSES.len() as u8 {
        let mut of_class: Vec<&mut Digit> = digits.iter_mut().filter(|digit| digit.label == label).collect();
        of_class.sort_by_key(|digit| digit.pixels.iter().map(|pixel| u32::from(*pixel)).sum::<u32>());
        let images = of_class.len();
        for (place, digit) in of_class.into_iter().enumerate() {
            digit.fine_label = label * 10 + (place * 10 / images) as u8;
        }
    }
}

/// Shuffles with a fixed seed, and holds out a fifth of every class.
fn split(mut digits: Vec<Digit>) -> (Vec<Digit>, Vec<Digit>) {
    let mut random = SplitMix64(42);
    for end in (1..digits.len()).rev() {
        digits.swap(end, random.below(end + 1));
    }
    let mut seen = [0; CLASSES.len()];
    digits.into_iter().partition(|digit| {
        let turn = &mut seen[usize::from(digit.label)];
        *turn += 1;
        *turn % HELD_OUT_EVERY != 0
    })
}

/// Writes each digit's labels and pixels.
fn write_records(path: &Path, digits: &[Digit], labels: impl Fn(&Digit) -> Vec<u8>) -> Result<()> {
    let mut file = std::io::BufWriter::new(fs::File::create(path)?);
    for digit in digits {
        file.write_all(&labels(digit))?;
        file.write_all(&planes(digit))?;
    }
    file.flush()?;
    Ok(())
}

/// The red, green and blue plane, each row by row: nearest-neighbor enlargement, 0..=16 scaled to 0..=255.
fn planes(digit: &Digit) -> [u8; PIXEL_BYTES] {
    const FACTOR: usize = RECORD_SIDE / SIDE;
    std::array::from_fn(|position| {
        let (row, column) = (position / RECORD_SIDE % RECORD_SIDE, position % RECORD_SIDE);
        let pixel = u16::from(digit.pixels[row / FACTOR * SIDE + column / FACTOR]);
        ((pixel * 255 + 8) / 16) as u8
    })
}

/// A small generator with a fixed sequence: Steele, Lea and Flood, "Fast splittable pseudorandom number generators".
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`; the remainder's bias is negligible at these sizes.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::{Digit, SplitMix64, parse_line, planes, set_fine_labels, split};

    fn line(pixel: &str, label: &str) -> String {
        format!("{}{label}", format!("{pixel},").repeat(64))
    }

    #[test]
    fn a_line_is_64_pixels_and_a_label() {
        assert_eq!(
            parse_line(&line("16", "7")).unwrap(),
            Digit {
                pixels: [16; 64],
                label: 7,
                fine_label: 0
            }
        );
    }

    #[test]
    fn a_bad_line_says_what_is_wrong() {
        for (text, says) in [
            (line("17", "7"), "above 16"),
            (line("1", "10"), "label 10"),
            ("1,2,3".to_owned(), "2 pixels instead of 64"),
            (line("x", "1"), "invalid digit"),
        ] {
            let error = format!("{:#}", parse_line(&text).unwrap_err());
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn an_image_is_three_equal_enlarged_planes() {
        let mut pixels = [0; 64];
        pixels[0] = 16; // top left
        pixels[63] = 8; // bottom right
        let found = planes(&Digit {
            pixels,
            label: 3,
            fine_label: 0,
        });
        let planes: Vec<&[u8]> = found.chunks(1024).collect();
        assert_eq!(planes.len(), 3);
        assert_eq!(planes[0], planes[1]);
        assert_eq!(planes[0], planes[2]);
        let at = |row: usize, column: usize| planes[0][row * 32 + column];
        assert_eq!([at(0, 0), at(3, 3), at(0, 4), at(4, 0)], [255, 255, 0, 0]);
        assert_eq!([at(31, 31), at(28, 28), at(27, 31)], [128, 128, 0]);
    }

    #[test]
    fn fine_labels_are_the_tenths_of_a_digit_by_ink() {
        let digit = |label, ink| Digit {
            pixels: [ink; 64],
            label,
            fine_label: 0,
        };
        let mut digits: Vec<_> = (0..20).rev().map(|ink| digit(3, ink / 2)).collect();
        digits.push(digit(9, 5));
        set_fine_labels(&mut digits);
        let found: Vec<u8> = digits.iter().map(|digit| digit.fine_label).collect();
        assert_eq!(found[..4], [39, 39, 38, 38]);
        assert_eq!(found[18..], [30, 30, 90]);
    }

    #[test]
    fn the_split_holds_out_a_fifth_of_every_class_always_the_same() {
        let digits: Vec<_> = (0..1000u32)
            .map(|n| {
                let mut pixels = [0; 64];
                pixels[..4].copy_from_slice(&n.to_le_bytes());
                Digit {
                    pixels,
                    label: (n % 10) as u8,
                    fine_label: 0,
                }
            })
            .collect();
        let (train, held_out) = split(digits.clone());
        assert_eq!((train.len(), held_out.len()), (800, 200));
        for label in 0..10 {
            assert_eq!(held_out.iter().filter(|digit| digit.label == label).count(), 20);
        }
        assert!(held_out.iter().all(|digit| !train.contains(digit)));
        assert_eq!(split(digits).1, held_out);
    }

    #[test]
    fn the_generator_has_the_published_sequence() {
        let mut random = SplitMix64(0);
        assert_eq!(
            [random.next(), random.next()],
            [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4]
        );
    }
}
