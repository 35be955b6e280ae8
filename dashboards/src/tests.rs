//! Errors that Grafana does not report: it shows empty panels, or one of two that overlap.

use std::collections::BTreeSet;

use serde_json::Value;

fn json() -> Vec<(&'static str, Value)> {
    let value = |dashboard| serde_json::to_value(dashboard).expect("JSON");
    super::all()
        .into_iter()
        .map(|(name, dashboard)| (name, value(dashboard)))
        .collect()
}

fn array<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    let found = value.pointer(pointer).and_then(Value::as_array);
    found.map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Panels that show data, each with a name for messages.
fn data_panels(dashboard: &Value) -> Vec<(String, &Value)> {
    array(dashboard, "/panels")
        .iter()
        .filter(|panel| panel["type"] != "row")
        .map(|panel| (format!("{}: {}", dashboard["title"], panel["title"]), panel))
        .collect()
}

/// Every query of a dashboard: of panels, variables and annotations.
fn queries(dashboard: &Value) -> Vec<&str> {
    let of_panels = array(dashboard, "/panels")
        .iter()
        .flat_map(|panel| array(panel, "/targets"))
        .map(|target| text(target, "/expr"));
    let of_variables = array(dashboard, "/templating/list")
        .iter()
        .map(|variable| text(variable, "/query/query"));
    let of_annotations = array(dashboard, "/annotations/list")
        .iter()
        .map(|annotation| text(annotation, "/target/expr"));
    of_panels
        .chain(of_variables)
        .chain(of_annotations)
        .filter(|query| !query.is_empty())
        .collect()
}

/// The names after `$` in a text.
fn variables_in(text: &str) -> BTreeSet<String> {
    let starts = text.match_indices('$').map(|(at, _)| &text[at + 1..]);
    starts
        .map(|rest| {
            rest.trim_start_matches('{')
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'))
                .collect()
        })
        .collect()
}

#[test]
fn every_panel_says_what_it_shows_and_asks_the_chosen_prometheus() {
    for (_, dashboard) in json() {
        let panels = data_panels(&dashboard);
        assert!(panels.len() > 15, "{} panels", panels.len());
        for (name, panel) in panels {
            assert!(
                text(panel, "/description").ends_with('.'),
                "{name} does not say what it shows"
            );
            assert!(
                !text(panel, "/fieldConfig/defaults/unit").is_empty(),
                "{name} has no unit"
            );
            let targets = array(panel, "/targets");
            assert!(!targets.is_empty(), "{name} has no query");
            let ids: BTreeSet<&str> = targets.iter().map(|target| text(target, "/refId")).collect();
            assert_eq!(ids.len(), targets.len(), "{name}: queries with the same name");
            for asked in targets.iter().chain([panel]) {
                assert_eq!(text(asked, "/datasource/uid"), "${datasource}", "{name}");
                assert_eq!(text(asked, "/datasource/type"), "prometheus", "{name}");
            }
        }
    }
}

#[test]
fn panels_have_numbers_of_their_own_and_do_not_overlap() {
    for (_, dashboard) in json() {
        let panels = array(&dashboard, "/panels");
        let ids: BTreeSet<u64> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
        assert_eq!(ids.len(), panels.len());
        let mut taken: BTreeSet<(u64, u64)> = BTreeSet::new();
        for panel in panels {
            let place = |part: &str| panel["gridPos"][part].as_u64().expect("a number");
            let (x, y, w, h) = (place("x"), place("y"), place("w"), place("h"));
            assert!(
                w > 0 && h > 0 && x + w <= 24,
                "{}: {}",
                panel["title"],
                panel["gridPos"]
            );
            for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
                assert!(
                    taken.insert(cell),
                    "{} covers another panel at {cell:?}",
                    panel["title"]
                );
            }
        }
    }
}

#[test]
fn every_line_of_panels_is_full() {
    for (_, dashboard) in json() {
        let lines = array(&dashboard, "/panels")
            .iter()
            .map(|panel| panel["gridPos"]["y"].as_u64());
        for line in lines.collect::<BTreeSet<_>>() {
            let widths = array(&dashboard, "/panels")
                .iter()
                .filter(|panel| panel["gridPos"]["y"].as_u64() == line)
                .filter_map(|panel| panel["gridPos"]["w"].as_u64());
            assert_eq!(widths.sum::<u64>(), 24, "{} at {line:?}", dashboard["title"]);
        }
    }
}

#[test]
fn every_variable_is_there_and_used() {
    for (_, dashboard) in json() {
        let defined: BTreeSet<String> = array(&dashboard, "/templating/list")
            .iter()
            .map(|variable| text(variable, "/name").to_owned())
            .collect();
        let own = |name: &String| !name.starts_with("__");
        let of_queries = queries(&dashboard).into_iter().flat_map(variables_in);
        let mut used: BTreeSet<String> = of_queries.filter(own).collect();
        // Every panel's data source.
        used.insert("datasource".into());
        assert_eq!(defined, used, "{}", dashboard["title"]);
        let anywhere = variables_in(&dashboard.to_string());
        let unknown: Vec<_> = anywhere
            .iter()
            .filter(|name| own(name) && !defined.contains(*name))
            .collect();
        assert!(unknown.is_empty(), "{}: {unknown:?}", dashboard["title"]);
    }
}

#[test]
fn every_query_is_of_the_chosen_clusters() {
    for (_, dashboard) in json() {
        for query in queries(&dashboard) {
            if query == "label_values(vit_operator_leader, cluster)" {
                continue;
            }
            let selectors = query.matches("vit_").count() + query.matches("ALERTS").count();
            assert!(selectors > 0, "{query}");
            assert_eq!(
                query.matches(r#"{cluster=~"$cluster""#).count(),
                selectors,
                "{query}"
            );
        }
    }
}

#[test]
fn colors_are_of_series_that_there_are() {
    for (_, dashboard) in json() {
        for (name, panel) in data_panels(&dashboard) {
            let legends: BTreeSet<&str> = array(panel, "/targets")
                .iter()
                .map(|target| text(target, "/legendFormat"))
                .collect();
            // In a table these are columns, and a legend with labels can have any name.
            if panel["type"] == "table" || legends.iter().any(|legend| legend.contains("{{")) {
                continue;
            }
            for matched in array(panel, "/fieldConfig/overrides") {
                let series = text(matched, "/matcher/options");
                assert!(
                    legends.contains(series),
                    "{name} has no series {series}: {legends:?}"
                );
            }
        }
    }
}

#[test]
fn columns_of_tables_are_named_once() {
    for (_, dashboard) in json() {
        for (name, panel) in data_panels(&dashboard) {
            let renamed = panel.pointer("/transformations/1/options/renameByName");
            let Some(renamed) = renamed.and_then(Value::as_object) else {
                assert_ne!(panel["type"], "table", "{name} does not name its columns");
                continue;
            };
            let columns: BTreeSet<&str> = renamed.values().filter_map(Value::as_str).collect();
            assert_eq!(columns.len(), renamed.len(), "{name}");
            for matched in array(panel, "/fieldConfig/overrides") {
                let column = text(matched, "/matcher/options");
                assert!(columns.contains(column), "{name} has no column {column}");
            }
        }
    }
}

#[test]
fn dashboards_lead_to_one_another() {
    let dashboards = json();
    let uids: BTreeSet<&str> = dashboards
        .iter()
        .map(|(_, dashboard)| text(dashboard, "/uid"))
        .collect();
    assert_eq!(uids.len(), dashboards.len());
    let mut links = 0;
    for (_, dashboard) in &dashboards {
        assert_eq!(
            dashboard["links"][0]["tags"], dashboard["tags"],
            "{}",
            dashboard["title"]
        );
        for (name, panel) in data_panels(dashboard) {
            for link in array(panel, "/fieldConfig/defaults/links") {
                let uid = text(link, "/url")
                    .strip_prefix("/d/")
                    .and_then(|rest| rest.split('?').next());
                assert!(
                    uid.is_some_and(|uid| uids.contains(uid)),
                    "{name} leads to {}",
                    link["url"]
                );
                links += 1;
            }
        }
    }
    assert_eq!(links, 1, "the table of jobs leads to the job");
}

#[test]
fn every_metric_is_on_a_dashboard() {
    let names = [
        include_str!("../../contract/src/metrics.rs"),
        include_str!("../../contract/src/operator_metrics.rs"),
    ]
    .concat();
    let metrics: BTreeSet<&str> = names
        .lines()
        .filter_map(|line| line.split('"').nth(1))
        .filter(|name| name.starts_with("vit_"))
        .collect();
    assert!(metrics.len() > 30, "{metrics:?}");
    let dashboards = json();
    let all: Vec<&str> = dashboards
        .iter()
        .flat_map(|(_, dashboard)| queries(dashboard))
        .collect();
    let words: BTreeSet<&str> = all
        .iter()
        .flat_map(|query| query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
        .collect();
    let is_shown = |metric: &&str| {
        ["", "_sum", "_count", "_bucket"]
            .iter()
            .any(|part| words.contains(format!("{metric}{part}").as_str()))
    };
    let missing: Vec<&str> = metrics.into_iter().filter(|metric| !is_shown(metric)).collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn what_descriptions_refer_to_is_there() {
    let page = include_str!("../../docs/operations.md");
    let rules = include_str!("../../charts/vit-operator/files/rules.yaml");
    let mut alerts = BTreeSet::new();
    for (_, dashboard) in json() {
        for (name, panel) in data_panels(&dashboard) {
            let words = text(panel, "/description").split(|c: char| !c.is_ascii_alphanumeric());
            for alert in words.filter(|word| {
                word.strip_prefix("ViT")
                    .is_some_and(|rest| rest.starts_with(char::is_uppercase))
                    && *word != "ViTTrainingJob"
            }) {
                assert!(page.contains(&format!("\n### {alert}\n")), "{name}: {alert}");
                assert!(rules.contains(&format!("alert: {alert}\n")), "{name}: {alert}");
                alerts.insert(alert.to_owned());
            }
        }
    }
    assert!(alerts.len() >= 6, "{alerts:?}");
}

#[test]
fn every_panel_is_on_the_page() {
    let page = include_str!("../../docs/dashboards.md");
    for (_, dashboard) in json() {
        for panel in array(&dashboard, "/panels") {
            let title = text(panel, "/title");
            assert!(page.contains(title), "{title} is not in docs/dashboards.md");
        }
    }
}
