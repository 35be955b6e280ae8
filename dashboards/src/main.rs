//! Writes the dashboards' files, or checks that they are fresh.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let check = match std::env::args().nth(1).as_deref() {
        Some("write") => false,
        Some("check") => true,
        other => {
            return fail(&format!(
                "dashboards write|check: got {}",
                other.unwrap_or("nothing")
            ));
        }
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(dashboards::FOLDER);
    for (name, dashboard) in dashboards::all() {
        let path = folder.join(name);
        let content = match serde_json::to_string_pretty(&dashboard) {
            Ok(json) => json + "\n",
            Err(error) => return fail(&format!("failed to render {name} as JSON: {error}")),
        };
        if check {
            if std::fs::read_to_string(&path).ok().as_deref() != Some(content.as_str()) {
                return fail(&format!(
                    "{}/{name} is not fresh: run `make generate` and commit the result",
                    dashboards::FOLDER
                ));
            }
        } else if let Err(error) =
            std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, content))
        {
            return fail(&format!("failed to write {}/{name}: {error}", dashboards::FOLDER));
        }
    }
    ExitCode::SUCCESS
}

#[expect(clippy::print_stderr, reason = "a command-line tool")]
fn fail(message: &str) -> ExitCode {
    eprintln!("{message}");
    ExitCode::FAILURE
}
