//! Kinds of panels.

use serde::Serialize;
use serde_json::{Value, json};

use crate::query::Expr;
use crate::schema::{
    Color, ColorMode, Data, DataLink, DataSource, FieldConfig, FieldConfigSource, Matcher, Override,
    Property, Target, Threshold,
};

/// End of an axis of counts while all are zero.
const FEW: u32 = 5;

/// Units, as Grafana names them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    Count,
    /// 0 to 1.
    Share,
    Seconds,
    Bytes,
    BytesPerSecond,
    Flops,
    ImagesPerSecond,
    PerSecond,
    Times,
    Celsius,
    Watts,
    /// Numbers of any size, such as learning rates.
    Scientific,
}

impl Unit {
    fn id(self) -> &'static str {
        match self {
            Self::Count => "short",
            Self::Share => "percentunit",
            Self::Seconds => "s",
            Self::Bytes => "bytes",
            Self::BytesPerSecond => "Bps",
            Self::Flops => "flops",
            Self::ImagesPerSecond => "suffix:images/s",
            Self::PerSecond => "cps",
            Self::Times => "suffix:x",
            Self::Celsius => "celsius",
            Self::Watts => "watt",
            Self::Scientific => "sci",
        }
    }
}

/// A panel under construction.
#[derive(Debug)]
pub(crate) struct Builder {
    kind: Kind,
    width: u32,
    title: String,
    description: String,
    queries: Vec<(Expr, String)>,
    field: FieldConfig,
    /// Differences from Grafana's defaults for this kind of panel.
    custom: Value,
    legend: LegendPlacement,
    overrides: Vec<Override>,
    transformations: Vec<Value>,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum LegendPlacement {
    Bottom,
    /// For more series than fit on one line.
    Right,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    TimeSeries,
    Stat,
    BarGauge,
    Table,
}

fn builder(kind: Kind, width: u32, title: &str, unit: Unit, description: &str) -> Builder {
    Builder {
        kind,
        width,
        title: title.into(),
        description: description.into(),
        queries: vec![],
        field: FieldConfig {
            unit: unit.id(),
            ..FieldConfig::default()
        },
        custom: json!({}),
        legend: LegendPlacement::Bottom,
        overrides: vec![],
        transformations: vec![],
    }
}

/// Lines over time.
pub(crate) fn time_series(width: u32, title: &str, unit: Unit, description: &str) -> Builder {
    let mut builder = builder(Kind::TimeSeries, width, title, unit, description);
    builder.custom = json!({
        "drawStyle": "line",
        "lineWidth": 2,
        "fillOpacity": 8,
        "showPoints": "never",
        "spanNulls": false,
    });
    builder.field.min = match unit {
        Unit::Scientific => None,
        _ => Some(0.0),
    };
    if let Unit::Count = unit {
        builder.field.decimals = Some(0);
    }
    builder
}

/// The last value in large letters.
pub(crate) fn stat(width: u32, title: &str, unit: Unit, description: &str) -> Builder {
    let mut builder = builder(Kind::Stat, width, title, unit, description);
    builder.field.color.mode = ColorMode::Thresholds;
    builder
}

/// Last values as bars from 0 to 1.
pub(crate) fn bar_gauge(width: u32, title: &str, description: &str) -> Builder {
    let mut builder = builder(Kind::BarGauge, width, title, Unit::Share, description);
    builder.field.color.mode = ColorMode::Thresholds;
    (builder.field.min, builder.field.max) = (Some(0.0), Some(1.0));
    builder
}

/// Last values by label.
pub(crate) fn table(width: u32, title: &str, unit: Unit, description: &str) -> Builder {
    let mut builder = builder(Kind::Table, width, title, unit, description);
    // With the default of 150, columns of numbers do not fit.
    builder.custom = json!({"minWidth": 80});
    builder
}

impl Builder {
    /// Adds a query; `{{label}}` in the legend stands for a label's value.
    pub(crate) fn query(mut self, expression: Expr, legend: impl Into<String>) -> Self {
        self.queries.push((expression, legend.into()));
        self
    }

    /// Stacked areas.
    pub(crate) fn stacked(self) -> Self {
        self.custom("stacking", json!({"mode": "normal", "group": "A"}))
            .custom("fillOpacity", json!(60))
            .custom("lineWidth", json!(1))
    }

    /// Each value lasts until the next one.
    pub(crate) fn steps(self) -> Self {
        self.custom("lineInterpolation", json!("stepAfter"))
    }

    /// The axis reaches at least this value.
    pub(crate) fn reaches(self, value: f64) -> Self {
        self.custom("axisSoftMax", json!(value))
    }

    /// Puts the legend to the right of the plot.
    pub(crate) fn legend_on_the_right(mut self) -> Self {
        self.legend = LegendPlacement::Right;
        self
    }

    fn custom(mut self, name: &str, value: Value) -> Self {
        self.custom[name] = value;
        self
    }

    /// At most 1.
    pub(crate) fn up_to_one(mut self) -> Self {
        self.field.max = Some(1.0);
        self
    }

    pub(crate) fn decimals(mut self, decimals: u8) -> Self {
        self.field.decimals = Some(decimals);
        self
    }

    /// The text to show without data.
    pub(crate) fn or_else(mut self, text: &'static str) -> Self {
        self.field.no_value = Some(text);
        self
    }

    /// Another color from this value on; in time series a dashed line.
    pub(crate) fn threshold(mut self, value: f64, color: &'static str) -> Self {
        self.field.thresholds.steps.push(Threshold {
            color,
            value: Some(value),
        });
        if self.kind == Kind::TimeSeries {
            return self.custom("thresholdsStyle", json!({"mode": "dashed"}));
        }
        self
    }

    /// The color of values below all thresholds.
    pub(crate) fn base_color(mut self, color: &'static str) -> Self {
        if let Some(base) = self.field.thresholds.steps.first_mut() {
            base.color = color;
        }
        self
    }

    /// The color of a series, by its legend.
    pub(crate) fn color(self, series: &str, color: &'static str) -> Self {
        let color = Color {
            mode: ColorMode::Fixed,
            fixed_color: Some(color),
        };
        self.property(series, "color", json!(color))
    }

    /// The colors of several series.
    pub(crate) fn colors<'a>(self, colors: impl IntoIterator<Item = (&'a str, &'static str)>) -> Self {
        colors
            .into_iter()
            .fold(self, |builder, (series, color)| builder.color(series, color))
    }

    /// The unit of one column of a table.
    pub(crate) fn unit_of(self, column: &str, unit: Unit) -> Self {
        self.property(column, "unit", json!(unit.id()))
    }

    /// The width of one column of a table, in pixels.
    pub(crate) fn width_of(self, column: &str, pixels: u32) -> Self {
        self.property(column, "custom.width", json!(pixels))
    }

    /// A separate axis from 0, on the right.
    pub(crate) fn on_the_right(self, series: &str, unit: Unit) -> Self {
        let mut builder = self.property(series, "unit", json!(unit.id()));
        builder = builder.property(series, "min", json!(0));
        builder = builder.property(series, "custom.axisPlacement", json!("right"));
        if let Unit::Count = unit {
            builder = builder.property(series, "decimals", json!(0));
            builder = builder.property(series, "custom.axisSoftMax", json!(FEW));
        }
        builder
    }

    fn property(mut self, series: &str, id: &'static str, value: Value) -> Self {
        let property = Property { id, value };
        let mut overrides = self.overrides.iter_mut();
        match overrides.find(|known| known.matcher.options == series) {
            Some(known) => known.properties.push(property),
            None => self.overrides.push(Override {
                matcher: Matcher {
                    id: "byName",
                    options: series.into(),
                },
                properties: vec![property],
            }),
        }
        self
    }

    /// The target of a click on a row.
    pub(crate) fn link(mut self, title: &'static str, url: String) -> Self {
        self.field.links.push(DataLink {
            title,
            url,
            target_blank: false,
        });
        self
    }

    /// Names and orders the columns of a table: labels first, then one column per query.
    pub(crate) fn columns(mut self, labels: &[(&str, &str)], values: &[&str]) -> Self {
        let is_one = values.len() == 1;
        let value = |index| {
            if is_one {
                "Value".into()
            } else {
                format!("Value #{}", ref_id(index))
            }
        };
        let labels = labels.iter().map(|(label, name)| ((*label).to_owned(), *name));
        let values = values
            .iter()
            .enumerate()
            .map(|(index, name)| (value(index), *name));
        let names: Vec<(String, &str)> = labels.chain(values).collect();
        let places = names.iter().enumerate();
        let places = places.map(|(place, (field, _))| (field.clone(), json!(place)));
        let renamed = names.iter().map(|(field, name)| (field.clone(), json!(name)));
        self.transformations = vec![
            json!({"id": "merge", "options": {}}),
            json!({"id": "organize", "options": {
                "excludeByName": {"Time": true},
                "indexByName": places.collect::<serde_json::Map<_, _>>(),
                "renameByName": renamed.collect::<serde_json::Map<_, _>>(),
            }}),
        ];
        self
    }

    fn options(&self) -> Value {
        let last = json!({"values": false, "calcs": ["lastNotNull"], "fields": ""});
        match self.kind {
            Kind::TimeSeries => json!({
                "legend": {"displayMode": "list", "placement": self.legend, "showLegend": true, "calcs": []},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }),
            Kind::Stat => json!({
                "reduceOptions": last,
                "colorMode": "value",
                "graphMode": "area",
                "justifyMode": "auto",
                "orientation": "auto",
                "textMode": "auto",
                "wideLayout": true,
                "showPercentChange": false,
                "percentChangeColorMode": "standard",
            }),
            Kind::BarGauge => json!({
                "reduceOptions": last,
                "orientation": "horizontal",
                "displayMode": "basic",
                "valueMode": "color",
                "showUnfilled": true,
                "namePlacement": "auto",
                "sizing": "auto",
                "minVizWidth": 8,
                "minVizHeight": 16,
                "maxVizHeight": 300,
                "legend": {"displayMode": "list", "placement": "bottom", "showLegend": false, "calcs": []},
            }),
            Kind::Table => json!({"showHeader": true, "cellHeight": "sm", "frameIndex": 0}),
        }
    }

    /// In columns of the dashboard.
    pub(crate) fn width(&self) -> u32 {
        self.width
    }

    /// Kind, title, description and data.
    pub(crate) fn content(mut self) -> (&'static str, String, String, Data) {
        let options = self.options();
        let is_table = self.kind == Kind::Table;
        if matches!(self.kind, Kind::TimeSeries | Kind::Table) {
            self.field.custom = Some(self.custom);
        }
        let targets = self
            .queries
            .into_iter()
            .enumerate()
            .map(|(index, (expression, legend_format))| Target {
                ref_id: ref_id(index),
                datasource: DataSource::CHOSEN,
                expr: expression.to_string(),
                legend_format,
                editor_mode: "code",
                instant: is_table,
                range: !is_table,
                format: if is_table { "table" } else { "time_series" },
            });
        let data = Data {
            datasource: DataSource::CHOSEN,
            targets: targets.collect(),
            field_config: FieldConfigSource {
                defaults: self.field,
                overrides: self.overrides,
            },
            options,
            transformations: self.transformations,
        };
        let kind = match self.kind {
            Kind::TimeSeries => "timeseries",
            Kind::Stat => "stat",
            Kind::BarGauge => "bargauge",
            Kind::Table => "table",
        };
        (kind, self.title, self.description, data)
    }
}

/// A, B, C and so on.
fn ref_id(index: usize) -> String {
    ('A'..='Z').nth(index).unwrap_or('Z').to_string()
}
