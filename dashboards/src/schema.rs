//! The part of Grafana's dashboard schema (`dashboard_types` of `@grafana/schema`, and the options
//! of each panel type) used here, without fields that Grafana fills in.

use serde::Serialize;
use serde_json::{Value, json};

/// The schema's version: Grafana 11.0. Later ones migrate it on load.
const SCHEMA_VERSION: u32 = 39;

/// The tag of all dashboards, which links them.
const TAG: &str = "vit-operator";

/// A dashboard.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Dashboard {
    pub(crate) uid: &'static str,
    pub(crate) title: &'static str,
    pub(crate) description: &'static str,
    pub(crate) tags: [&'static str; 1],
    pub(crate) schema_version: u32,
    pub(crate) editable: bool,
    /// 1: panels share the crosshair.
    pub(crate) graph_tooltip: u8,
    pub(crate) timezone: &'static str,
    pub(crate) refresh: &'static str,
    pub(crate) time: Value,
    /// Links at the top to the other dashboards.
    pub(crate) links: Value,
    pub(crate) templating: Value,
    pub(crate) annotations: Value,
    pub(crate) panels: Vec<Panel>,
}

impl Default for Dashboard {
    fn default() -> Self {
        Self {
            uid: "",
            title: "",
            description: "",
            tags: [TAG],
            schema_version: SCHEMA_VERSION,
            editable: true,
            graph_tooltip: 1,
            timezone: "browser",
            refresh: "",
            time: json!({}),
            links: json!([{
                "title": TAG,
                "tooltip": "Dashboards of vit-operator",
                "type": "dashboards",
                "url": "",
                "tags": [TAG],
                "icon": "external link",
                "asDropdown": false,
                "includeVars": false,
                "keepTime": true,
                "targetBlank": false,
            }]),
            templating: json!({"list": []}),
            annotations: json!({"list": []}),
            panels: vec![],
        }
    }
}

/// A data source by type and uid, which is usually the variable `datasource`.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct DataSource {
    pub(crate) r#type: &'static str,
    pub(crate) uid: &'static str,
}

impl DataSource {
    /// The Prometheus chosen on the dashboard.
    pub(crate) const CHOSEN: Self = Self {
        r#type: "prometheus",
        uid: "${datasource}",
    };
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

/// Position of a panel, in 24 columns and rows of 38 pixels.
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
    /// The panels of a collapsed row.
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
    pub(crate) transformations: Vec<Value>,
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
    /// Whether to query only the end of the time range.
    pub(crate) instant: bool,
    pub(crate) range: bool,
    pub(crate) format: &'static str,
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
    /// By the name of the series, so that it keeps its color.
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
