//! What Grafana reads: the part of its dashboard schema (`dashboard_types` of `@grafana/schema`, and the options of each
//! kind of panel) that is used here. Fields that Grafana fills in itself are left out.

use serde::Serialize;
use serde_json::Value;

/// The schema's version: Grafana 11.0. Later ones read it and migrate it as they load it.
const SCHEMA_VERSION: u32 = 39;

/// A dashboard.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Dashboard {
    pub(crate) uid: &'static str,
    pub(crate) title: &'static str,
    pub(crate) description: &'static str,
    pub(crate) tags: Vec<&'static str>,
    pub(crate) schema_version: SchemaVersion,
    pub(crate) editable: bool,
    pub(crate) graph_tooltip: CursorSync,
    pub(crate) timezone: &'static str,
    pub(crate) refresh: &'static str,
    pub(crate) time: TimeRange,
    pub(crate) links: Vec<DashboardLink>,
    pub(crate) templating: List<Variable>,
    pub(crate) annotations: List<Annotation>,
    pub(crate) panels: Vec<Panel>,
}

/// Always [`SCHEMA_VERSION`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct SchemaVersion;

impl Serialize for SchemaVersion {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(SCHEMA_VERSION)
    }
}

/// What the panels share where the mouse is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CursorSync {
    /// The line of the time.
    Crosshair,
}

impl Serialize for CursorSync {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(match self {
            Self::Crosshair => 1,
        })
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct TimeRange {
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct List<T> {
    pub(crate) list: Vec<T>,
}

/// A link at the top of a dashboard, to those with its tags.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_excessive_bools, reason = "Grafana's schema has them")]
pub(crate) struct DashboardLink {
    pub(crate) title: &'static str,
    pub(crate) tooltip: &'static str,
    pub(crate) r#type: &'static str,
    pub(crate) url: &'static str,
    pub(crate) tags: Vec<&'static str>,
    pub(crate) icon: &'static str,
    pub(crate) as_dropdown: bool,
    pub(crate) include_vars: bool,
    pub(crate) keep_time: bool,
    pub(crate) target_blank: bool,
}

/// A data source by type and, mostly through the variable `datasource`, uid.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct DataSource {
    pub(crate) r#type: &'static str,
    pub(crate) uid: &'static str,
}

impl DataSource {
    /// The Prometheus that the dashboard's reader chose.
    pub(crate) const CHOSEN: Self = Self {
        r#type: "prometheus",
        uid: "${datasource}",
    };
}

#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum Variable {
    /// Which data source.
    DataSource(DataSourceVariable),
    /// Values of a label.
    Query(QueryVariable),
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DataSourceVariable {
    pub(crate) name: &'static str,
    pub(crate) label: &'static str,
    /// Type of the data sources.
    pub(crate) query: &'static str,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct QueryVariable {
    pub(crate) name: &'static str,
    pub(crate) label: &'static str,
    pub(crate) description: &'static str,
    pub(crate) datasource: DataSource,
    pub(crate) query: VariableQuery,
    /// 2: whenever the time range changes.
    pub(crate) refresh: u8,
    /// 7: in natural order, so that 10 comes after 9.
    pub(crate) sort: u8,
    pub(crate) multi: bool,
    pub(crate) include_all: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) all_value: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<Choice>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VariableQuery {
    pub(crate) query: String,
    pub(crate) ref_id: &'static str,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Choice {
    pub(crate) text: &'static str,
    pub(crate) value: &'static str,
}

/// Marks on the time axis.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Annotation {
    pub(crate) name: &'static str,
    pub(crate) datasource: DataSource,
    pub(crate) enable: bool,
    pub(crate) icon_color: &'static str,
    pub(crate) target: AnnotationTarget,
    /// Time between two values, in place of a minute.
    pub(crate) step: &'static str,
    pub(crate) title_format: &'static str,
    pub(crate) text_format: &'static str,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AnnotationTarget {
    pub(crate) ref_id: &'static str,
    pub(crate) expr: String,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Panel {
    pub(crate) id: u32,
    pub(crate) r#type: &'static str,
    pub(crate) title: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) description: String,
    pub(crate) grid_pos: GridPos,
    #[serde(flatten)]
    pub(crate) content: Content,
}

/// Where a panel is, in 24 columns and rows of 38 pixels.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct GridPos {
    pub(crate) x: u32,
    pub(crate) y: u32,
    pub(crate) w: u32,
    pub(crate) h: u32,
}

#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Content {
    /// A heading over the panels that follow.
    Row(Row),
    /// Data.
    Data(Box<Data>),
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) collapsed: bool,
    /// Those of a row that is collapsed.
    pub(crate) panels: [(); 0],
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Data {
    pub(crate) datasource: DataSource,
    pub(crate) targets: Vec<Target>,
    pub(crate) field_config: FieldConfigSource,
    pub(crate) options: Value,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) transformations: Vec<Transformation>,
}

/// A query.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Target {
    pub(crate) ref_id: String,
    pub(crate) datasource: DataSource,
    pub(crate) expr: String,
    pub(crate) legend_format: String,
    pub(crate) editor_mode: &'static str,
    /// Whether it is asked for the end of the time range alone.
    pub(crate) instant: bool,
    pub(crate) range: bool,
    pub(crate) format: &'static str,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Transformation {
    pub(crate) id: &'static str,
    pub(crate) options: Value,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct FieldConfigSource {
    pub(crate) defaults: FieldConfig,
    pub(crate) overrides: Vec<Override>,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FieldConfig {
    pub(crate) unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decimals: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) no_value: Option<&'static str>,
    pub(crate) color: Color,
    pub(crate) thresholds: Thresholds,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) custom: Option<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) links: Vec<DataLink>,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Color {
    pub(crate) mode: ColorMode,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fixed_color: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ColorMode {
    Fixed,
    /// By the name of the series, so that it keeps its colour.
    #[default]
    PaletteClassicByName,
    Thresholds,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Thresholds {
    pub(crate) mode: &'static str,
    pub(crate) steps: Vec<Threshold>,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            mode: "absolute",
            steps: vec![Threshold {
                color: "green",
                value: None,
            }],
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Threshold {
    pub(crate) color: &'static str,
    /// From here on; the first one has none.
    pub(crate) value: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Override {
    pub(crate) matcher: Matcher,
    pub(crate) properties: Vec<Property>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Matcher {
    pub(crate) id: &'static str,
    pub(crate) options: String,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Property {
    pub(crate) id: &'static str,
    pub(crate) value: Value,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DataLink {
    pub(crate) title: &'static str,
    pub(crate) url: String,
    pub(crate) target_blank: bool,
}
