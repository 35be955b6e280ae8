//! The HTML page.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use study::PointResult;

use super::figures::{Figure, figures, sweeps};
use super::models;
use super::notes::notes;
use super::tables::{columns, place, words};
use super::{Report, Subject};

const STYLE: &str = "
:root { color-scheme: light; font: 15px/1.5 system-ui, sans-serif; color: #24292f; }
body { max-width: 1320px; margin: 0 auto; padding: 24px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 20px; margin: 40px 0 8px; border-bottom: 1px solid #d8dee4; }
h3 { font-size: 15px; margin: 0; } .model { margin-top: 20px; } p { margin: 4px 0; } .muted, figcaption { color: #57606a; font-size: 13px; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(400px, 1fr)); gap: 20px; margin: 16px 0; }
figure { margin: 0; padding: 12px; border: 1px solid #d8dee4; border-radius: 8px; } svg { width: 100%; height: auto; }
svg text { font: 14.5px sans-serif; }
.legend span { display: inline-block; margin-right: 14px; font-size: 13px; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 5px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 4px 10px; border-bottom: 1px solid #eaeef2; white-space: nowrap; }
th { background: #f6f8fa; font-weight: 600; } .text { text-align: left; }
small { display: block; color: #57606a; font-size: 11px; } td { vertical-align: top; }
.note { border-left: 3px solid #d4a72c; background: #fff8e5; padding: 6px 12px; margin: 6px 0; }
.failed { border-left: 3px solid #cf222e; background: #ffebe9; padding: 6px 12px; margin: 6px 0; }
dl { display: grid; grid-template-columns: max-content auto; gap: 2px 16px; margin: 8px 0; font-size: 13px; } dd { margin: 0; }
dt { color: #57606a; }
";

pub(super) fn page(report: &Report) -> Markup {
    let subject = &report.subject;
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Scaling study " (subject.name) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "Scaling study " (subject.name) }
                (how(subject))
                dl {
                    @for (name, value) in &subject.circumstances { dt { (name) } dd { (value) } }
                }
                (terms())
                @for points in sweeps(&report.results.points) { (sweep(points)) }
                @if !report.forecasts.is_empty() { (models(report)) }
            }
        }
    }
}

fn how(subject: &Subject) -> Markup {
    let runs = match subject.repetitions {
        1 => "once".to_owned(),
        many => format!("{many} times with different seeds"),
    };
    let epochs = match subject.epochs {
        1 => "1 epoch".to_owned(),
        many => format!("{many} epochs"),
    };
    html! {
        p.muted {
            "Every point trained for " (epochs) ", " (runs) ". Values are medians, with minimum and maximum \
             below them and as whiskers. Times exclude the first " (subject.warmup_steps) " steps."
        }
    }
}

fn terms() -> Markup {
    html! {
        p.muted {
            b { "Compute" } ": data, forward and backward pass, optimizer, and host work between steps. " b { "Exposed" } ": waiting for communication that every \
             rank has started. " b { "Straggler" } ": waiting for slower ranks. DeepSpeed's " code { "bwd_allreduce" } " is exposed + \
             straggler. " b { "Communication" } ": time of collectives, hidden by computation or not."
        }
    }
}

fn sweep(points: &[PointResult]) -> Markup {
    let failed: Vec<&PointResult> = points.iter().filter(|point| !point.failures.is_empty()).collect();
    html! {
        h2 id=(points[0].point.sweep) { (points[0].point.sweep) }
        @for note in notes(points) { p.note { (note) } }
        @for point in failed {
            p.failed {
                b { @if point.measured.is_some() { "Some repetitions were not measured: " } @else { "Not measured: " } } (words(point)) ": " (point.failures.join("; "))
            }
        }
        div.figures { @for figure in figures(points) { (picture(&figure)) } }
        (table(points))
    }
}

fn models(report: &Report) -> Markup {
    html! {
        h2 { "Cost model and predictions" }
        p.muted { (models::EXPLANATION) }
        @for forecast in &report.forecasts {
            h3.model { (forecast.name) }
            p { (models::costs(forecast)) }
            @for sentence in models::findings(forecast) { p { (sentence) } }
            @for table in models::tables(forecast) {
                p.muted { (table.title) }
                div.scroll {
                    table {
                        thead { tr { @for title in &table.titles { th { (title) } } } }
                        tbody { @for row in &table.rows { tr { @for value in row { td { (value) } } } } }
                    }
                }
            }
        }
    }
}

fn picture(figure: &Figure) -> Markup {
    html! {
        figure {
            h3 { (figure.title) }
            div.legend {
                @for (color, meaning) in &figure.picture.legend {
                    span { i style={ "background:" (color) } {} (meaning) }
                }
                @for (number, name) in &figure.picture.places { span { b { (number) } " " (name) } }
            }
            (PreEscaped(&figure.picture.svg))
            figcaption { (figure.caption) }
        }
    }
}

fn table(points: &[PointResult]) -> Markup {
    let columns = columns(points);
    html! {
        div.scroll {
            table {
                thead {
                    tr {
                        @for (name, _) in place(&points[0]) { th { (name) } }
                        @for column in &columns { th { (column.title) } }
                    }
                }
                tbody {
                    @for point in points {
                        tr {
                            @for (name, value) in place(point) { td.text[name == "variant"] { (value) } }
                            @for column in &columns { (cell(column.parts(point))) }
                        }
                    }
                }
            }
        }
    }
}

/// A median, with the range below it.
fn cell((median, spread): (String, Option<String>)) -> Markup {
    html! {
        td { (median) @if let Some(spread) = spread { small { (spread) } } }
    }
}
