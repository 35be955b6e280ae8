//! The operator at scale, on a real control plane with fake nodes (KWOK), compared with a plain
//! client, a peer and Indexed Jobs. Writes the keys `create`, `gang_restart`, `scale` and
//! `queue` of `target/bench/operator.json`; docs/performance.md defines them. Needs root.
#![allow(clippy::print_stdout, reason = "the table is the result")]

mod create;
mod gang_restart;
mod peers;
mod pods;
mod queue;
mod report;
mod requests;
mod scale;
mod testbed;
mod usage;
mod workload;

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};
use vit_tests::packages;

use report::Report;

#[derive(Parser)]
struct Arguments {
    /// The parts to measure; default: all.
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Part {
    /// Pods Running per second, compared with a plain client, training-operator and Indexed Jobs.
    Create,
    /// A large gang, from a failed container until all pods are recreated.
    GangRestart,
    /// Thousands of nodes and jobs: time, reconciles, API calls, memory.
    Scale,
    /// A thousand waiting jobs on a full cluster: their writes, and the restart of a gang beside them.
    Queue,
}

impl Part {
    async fn measure(self) -> Result<Report> {
        match self {
            Self::Create => create::measure().await,
            Self::GangRestart => gang_restart::measure().await,
            Self::Scale => scale::measure().await,
            Self::Queue => queue::measure().await,
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let Arguments { parts, bench: _ } = Arguments::parse();
    let is_chosen = |part: &Part| parts.is_empty() || parts.contains(part);
    packages::check_machine()?;
    packages::install_missing()?;
    let mut tables = Vec::new();
    for part in Part::value_variants().iter().copied().filter(is_chosen) {
        let report = part.measure().await?;
        // Save each part at once, in case a later one fails.
        let key = part.to_possible_value().context("the part has no name")?;
        report.save(key.get_name())?;
        tables.push(report.to_string());
    }
    println!("{} processors\n", std::thread::available_parallelism()?);
    for table in tables {
        println!("{table}");
    }
    Ok(())
}
