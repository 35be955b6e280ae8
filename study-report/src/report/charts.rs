//! Charts as SVG.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use study::Spread;

const SIZE: (u32, u32) = (620, 340);
const MARGIN: u32 = 12;
/// Width of the numbers beside the y axis.
const LEFT: u32 = 84;
const INK: RGBColor = RGBColor(60, 64, 72);
const GRID: RGBColor = RGBColor(226, 229, 234);
/// Colors of series, distinct for color-blind readers too (Okabe and Ito).
const SERIES: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
    RGBColor(120, 72, 40),
];

/// Labels of the axes.
pub(super) struct Axes<'a> {
    /// Positions along the x axis.
    pub(super) categories: &'a [String],
    pub(super) x: &'a str,
    pub(super) y: &'a str,
    /// Whether the positions are ordered, such as numbers of ranks: only then lines connect them.
    pub(super) are_ordered: bool,
}

/// A line, or a bar at each position.
pub(super) struct Series<T> {
    pub(super) name: String,
    /// The value at each position, if any.
    pub(super) values: Vec<Option<T>>,
}

/// Parts of a bar, from the bottom.
pub(super) struct Stack<const PARTS: usize> {
    pub(super) parts: [f64; PARTS],
    /// Spread of the whole bar.
    pub(super) whole: Spread,
}

/// A chart with its legend.
pub(super) struct Picture {
    pub(super) svg: String,
    /// Color and meaning.
    pub(super) legend: Vec<(String, String)>,
    /// Number and name of each position, if the names do not fit on the axis.
    pub(super) places: Vec<(String, String)>,
}

/// One series per color.
pub(super) const MOST_SERIES: usize = SERIES.len();

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Places, RangedCoordf64>>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Medians as lines or bars, with whiskers from minimum to maximum. `ideal` is a dashed line.
pub(super) fn medians(axes: &Axes<'_>, series: &[Series<Spread>], ideal: Option<&[f64]>) -> Picture {
    let all = series.iter().flat_map(|series| series.values.iter().flatten());
    let most = all
        .map(|spread| spread.most)
        .chain(ideal.into_iter().flatten().copied())
        .fold(0.0, f64::max);
    let labels = Labels::of(axes);
    let svg = picture(axes, &labels, most, |chart| {
        if let Some(ideal) = ideal {
            let points: Vec<(f64, f64)> = ideal
                .iter()
                .enumerate()
                .map(|(place, y)| (center(place), *y))
                .collect();
            chart.draw_series(DashedLineSeries::new(points, 6, 5, INK.stroke_width(1)))?;
        }
        let bars = Bars::of(series.len());
        for ((number, series), color) in series.iter().enumerate().zip(SERIES.iter().cycle()) {
            let values = series.values.iter().enumerate();
            let points: Vec<(usize, Spread)> = values
                .filter_map(|(place, spread)| Some((place, (*spread)?)))
                .collect();
            if axes.are_ordered {
                let medians = points
                    .iter()
                    .map(|(place, spread)| (center(*place), spread.median));
                chart.draw_series(LineSeries::new(medians.clone(), color.stroke_width(2)))?;
                whiskers(
                    chart,
                    points.iter().map(|(place, spread)| (center(*place), *spread)),
                    *color,
                )?;
                chart.draw_series(medians.map(|point| Circle::new(point, 4, color.filled())))?;
            } else {
                let filled = |(place, spread): &(usize, Spread)| {
                    let (left, right) = bars.sides(*place, number);
                    Rectangle::new([(left, 0.0), (right, spread.median)], color.filled())
                };
                chart.draw_series(points.iter().map(filled))?;
                let middle = |place| bars.middle(place, number);
                whiskers(
                    chart,
                    points.iter().map(|(place, spread)| (middle(*place), *spread)),
                    INK,
                )?;
            }
        }
        Ok(())
    });
    let mut legend: Vec<(String, String)> = series
        .iter()
        .zip(SERIES.iter().cycle())
        .map(|(series, color)| (hex(*color), series.name.clone()))
        .collect();
    if ideal.is_some() {
        legend.push((hex(INK), "ideal".into()));
    }
    Picture {
        svg,
        legend,
        places: labels.places,
    }
}

/// Stacked bars with a whisker for the whole. Bars of several series are side by side, in order.
pub(super) fn stacks<const PARTS: usize>(
    axes: &Axes<'_>,
    series: &[Series<Stack<PARTS>>],
    parts: [(&str, (u8, u8, u8)); PARTS],
) -> Picture {
    let all = || series.iter().flat_map(|series| series.values.iter().flatten());
    let heights = all().map(|stack| stack.parts.iter().sum::<f64>().max(stack.whole.most));
    let most = heights.fold(0.0, f64::max);
    let colors = parts.map(|(_, (red, green, blue))| RGBColor(red, green, blue));
    let bars = Bars::of(series.len());
    let labels = Labels::of(axes);
    let svg = picture(axes, &labels, most, |chart| {
        for (number, series) in series.iter().enumerate() {
            for (place, stack) in series.values.iter().enumerate() {
                let Some(stack) = stack else { continue };
                let (left, right) = bars.sides(place, number);
                let mut below = 0.0;
                for (value, color) in stack.parts.iter().zip(colors) {
                    let bar = [(left, below), (right, below + value)];
                    chart.draw_series([Rectangle::new(bar, color.filled())])?;
                    below += value;
                }
                whiskers(
                    chart,
                    std::iter::once((bars.middle(place, number), stack.whole)),
                    INK,
                )?;
            }
        }
        Ok(())
    });
    let is_seen = |part: usize| all().any(|stack| stack.parts[part] > 1e-3 * most);
    let legend = parts
        .iter()
        .zip(colors)
        .enumerate()
        .filter(|(part, _)| is_seen(*part))
        .map(|(_, ((name, _), color))| (hex(color), (*name).to_owned()));
    Picture {
        svg,
        legend: legend.collect(),
        places: labels.places,
    }
}

/// Lines from minimum to maximum, if they differ.
fn whiskers(
    chart: &mut Chart<'_, '_>,
    spreads: impl Iterator<Item = (f64, Spread)>,
    color: RGBColor,
) -> Drawn {
    let spreads = spreads.filter(|(_, spread)| spread.least < spread.most);
    chart.draw_series(spreads.flat_map(|(x, spread)| {
        let cap = |y| PathElement::new(vec![(x - 0.03, y), (x + 0.03, y)], color);
        let line = PathElement::new(vec![(x, spread.least), (x, spread.most)], color);
        [line, cap(spread.least), cap(spread.most)]
    }))?;
    Ok(())
}

/// Bars of several series, side by side.
struct Bars {
    width: f64,
}

impl Bars {
    fn of(series: usize) -> Self {
        Self {
            width: 0.7 / series.max(1) as f64,
        }
    }

    /// Left and right side of a series' bar at a position.
    fn sides(&self, place: usize, series: usize) -> (f64, f64) {
        let left = place as f64 + 0.15 + series as f64 * self.width;
        (left, left + self.width * 0.92)
    }

    fn middle(&self, place: usize, series: usize) -> f64 {
        let (left, right) = self.sides(place, series);
        f64::midpoint(left, right)
    }
}

/// Labels of the positions.
struct Labels {
    below: Vec<String>,
    /// Number and name of each position, if the names are listed in the legend.
    places: Vec<(String, String)>,
}

impl Labels {
    /// Width of a letter in pixels; most letters are narrower.
    const LETTER: usize = 9;

    /// The names, if they fit side by side. Otherwise every n-th of ordered names, or numbers.
    fn of(axes: &Axes<'_>) -> Self {
        let categories = axes.categories;
        let width = (SIZE.0 - 2 * MARGIN - LEFT) as usize / categories.len().max(1);
        let letters = |names: &[String]| names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        // One letter's width as a gap.
        let widest = |names: &[String]| (letters(names) + 1) * Self::LETTER;
        let names = categories.to_vec();
        if widest(&names) <= width {
            return Self {
                below: names,
                places: vec![],
            };
        }
        let every_nth = |names: Vec<String>| {
            let step = widest(&names).div_ceil(width.max(1));
            let shown = |(place, name): (usize, String)| if place % step == 0 { name } else { String::new() };
            names.into_iter().enumerate().map(shown).collect()
        };
        if axes.are_ordered {
            return Self {
                below: every_nth(names),
                places: vec![],
            };
        }
        let numbers: Vec<String> = (1..=names.len()).map(|number| number.to_string()).collect();
        Self {
            below: every_nth(numbers.clone()),
            places: numbers.into_iter().zip(names).collect(),
        }
    }
}

/// Draws axes, the y axis from 0 to slightly above `most`, and what `draw` adds.
fn picture(
    axes: &Axes<'_>,
    labels: &Labels,
    most: f64,
    draw: impl FnOnce(&mut Chart<'_, '_>) -> Drawn,
) -> String {
    let mut svg = String::new();
    let drawn = frame(&mut svg, axes, labels, most, draw);
    drawn.expect("draws to memory");
    // A page has many charts: without defaults, and the font that its style has, they are a third smaller.
    [
        r#" opacity="1""#,
        r#" stroke="none""#,
        r#" stroke-width="1""#,
        r#" font-family="sans-serif" font-size="14.516129032258064""#,
    ]
    .iter()
    .fold(svg, |svg, default| svg.replace(default, ""))
}

fn frame(
    svg: &mut String,
    axes: &Axes<'_>,
    labels: &Labels,
    most: f64,
    draw: impl FnOnce(&mut Chart<'_, '_>) -> Drawn,
) -> Drawn {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let top = if most > 0.0 { most * 1.08 } else { 1.0 };
    let mut chart = ChartBuilder::on(&root)
        .margin(MARGIN)
        .x_label_area_size(58)
        .y_label_area_size(LEFT)
        .build_cartesian_2d(Places(axes.categories.len()), 0.0..top)?;
    let text = ("sans-serif", 18).into_font().color(&INK);
    let category = |x: &f64| labels.below.get(*x as usize).cloned().unwrap_or_default();
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(INK)
        .label_style(text.clone())
        .axis_desc_style(text)
        .x_label_formatter(&category)
        .y_label_formatter(&|y| number(*y))
        .y_labels(6)
        .x_desc(axes.x)
        .y_desc(axes.y)
        .draw()?;
    draw(&mut chart)?;
    root.present()?;
    Ok(())
}

/// An axis with this many positions, each of width 1 and labeled at its center.
struct Places(usize);

impl Ranged for Places {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (first, last): (i32, i32)) -> i32 {
        first + (f64::from(last - first) * value / self.0.max(1) as f64).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        (0..self.0).map(center).collect()
    }

    fn range(&self) -> Range<f64> {
        0.0..self.0 as f64
    }
}

fn center(place: usize) -> f64 {
    place as f64 + 0.5
}

/// Formats an axis label with no more digits than it needs.
fn number(value: f64) -> String {
    let digits = if value >= 10.0 || value == 0.0 {
        0
    } else if value >= 1.0 {
        1
    } else if value >= 0.1 {
        2
    } else {
        3
    };
    let text = format!("{value:.digits$}");
    if digits > 0 {
        text.trim_end_matches('0').trim_end_matches('.').into()
    } else {
        text
    }
}

fn hex(color: RGBColor) -> String {
    format!("#{:02x}{:02x}{:02x}", color.0, color.1, color.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(categories: &[String], are_ordered: bool) -> Labels {
        Labels::of(&Axes {
            categories,
            x: "",
            y: "",
            are_ordered,
        })
    }

    fn below(categories: &[&str]) -> (Vec<String>, usize) {
        let categories: Vec<String> = categories.iter().map(ToString::to_string).collect();
        let labels = labels(&categories, false);
        (labels.below, labels.places.len())
    }

    #[test]
    fn names_that_do_not_fit_below_their_places_are_listed_by_number() {
        assert_eq!(below(&["fp32", "bf16"]), (vec!["fp32".into(), "bf16".into()], 0));
        let names = ["vit-trainer tensor parallel"; 4];
        assert_eq!(below(&names), (["1", "2", "3", "4"].map(String::from).into(), 4));
        let all = labels(&names.map(String::from), false);
        assert_eq!(all.places[3], ("4".to_owned(), names[3].to_owned()));
        // Names that are numbers too: without the legend nothing would identify their bars.
        assert_eq!(below(&["0.000001"; 8]).1, 8);
    }

    #[test]
    fn of_many_numbers_only_those_are_there_that_fit() {
        let epochs: Vec<String> = (1..=100).map(|epoch| epoch.to_string()).collect();
        let Labels { below, places } = labels(&epochs, true);
        assert!(places.is_empty());
        let shown: Vec<&String> = below.iter().filter(|label| !label.is_empty()).collect();
        let letters: usize = shown.iter().map(|label| label.len()).sum();
        assert!(
            shown.len() > 5 && letters * Labels::LETTER < SIZE.0 as usize,
            "{shown:?}"
        );
    }
}
