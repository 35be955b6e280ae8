//! The choice of a part of an image.

use contract::RandomResizedCrop;

use super::draws::Draws;

/// A part of an image, in pixels.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Window {
    pub(super) left: u32,
    pub(super) top: u32,
    pub(super) width: u32,
    pub(super) height: u32,
}

/// Attempts at a random window before the center of the image is used.
const ATTEMPTS: usize = 10;

/// The window of a random resized crop, as in timm and torchvision.
pub(super) fn random_window(crop: &RandomResizedCrop, width: u32, height: u32, draws: &mut Draws) -> Window {
    let area = f64::from(width) * f64::from(height);
    for _ in 0..ATTEMPTS {
        let target = area * draws.between(crop.scale);
        let ratio = draws.between(crop.ratio.map(f64::ln)).exp();
        let [wide, high] = [target * ratio, target / ratio].map(|square| square.sqrt().round() as u32);
        if (1..=width).contains(&wide) && (1..=height).contains(&high) {
            return Window {
                left: draws.below((width - wide) as usize + 1) as u32,
                top: draws.below((height - high) as usize + 1) as u32,
                width: wide,
                height: high,
            };
        }
    }
    let [least, largest] = crop.ratio;
    let ratio = (f64::from(width) / f64::from(height)).clamp(least, largest);
    let wide = ((f64::from(height) * ratio).round() as u32).clamp(1, width);
    let high = ((f64::from(width) / ratio).round() as u32).clamp(1, height);
    Window {
        left: (width - wide) / 2,
        top: (height - high) / 2,
        width: wide,
        height: high,
    }
}

/// The window's place in a margin of `padding` pixels: from the left, from the top.
pub(super) fn random_offset(padding: u32, draws: &mut Draws) -> (u32, u32) {
    let choices = 2 * padding as usize + 1;
    (draws.below(choices) as u32, draws.below(choices) as u32)
}

#[cfg(test)]
mod tests {
    use contract::Interpolation;

    use super::*;
    use crate::random::Stream;

    fn crop() -> RandomResizedCrop {
        RandomResizedCrop {
            scale: [0.08, 1.0],
            ratio: [0.75, 4.0 / 3.0],
            interpolation: Interpolation::Bicubic,
        }
    }

    #[test]
    fn windows_lie_inside_the_image_and_in_the_bounds() {
        for (width, height) in [(224, 224), (500, 333), (1, 9), (3, 1000), (1, 1)] {
            for place in 0..300 {
                let window =
                    random_window(&crop(), width, height, &mut Draws::new(0, Stream::Crop, 0, place));
                assert!(
                    window.width >= 1
                        && window.height >= 1
                        && window.left + window.width <= width
                        && window.top + window.height <= height,
                    "{window:?} of {width} x {height}"
                );
                if width == height && width > 1 {
                    let share = f64::from(window.width * window.height) / f64::from(width * height);
                    assert!((0.07..=1.0).contains(&share), "{share}");
                }
            }
        }
    }
}
