//! `vit-trainer completions`: completions of this program's command line for a shell.

use clap::Command;
use clap_complete::Shell;
use contract::ExitCode;

/// The command line of `completions`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: vit-trainer completions bash > ~/.local/share/bash-completion/completions/vit-trainer"
)]
pub(crate) struct Arguments {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

pub(crate) fn main(arguments: &Arguments, command: &mut Command) -> ExitCode {
    clap_complete::generate(arguments.shell, command, "vit-trainer", &mut std::io::stdout());
    ExitCode::Done
}
